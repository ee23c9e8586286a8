// SPDX-License-Identifier: Apache-2.0

// Package quiclb issues QUIC connection ids that carry the id of their server, for
// load balancers such as Causeway: draft-ietf-quic-load-balancers-21, and the siphash
// algorithm of Causeway. A Generator is a quic.ConnectionIDGenerator; set it in the
// Transport that listens:
//
//	config := quiclb.Config{Number: 0, Algorithm: quiclb.SipHash, ServerIDLen: 2, NonceLen: 8, Key: key}
//	generator, err := quiclb.NewGenerator(config, 300)
//	transport := &quic.Transport{Conn: conn, ConnectionIDGenerator: generator}
package quiclb

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Algorithm says how server id and nonce are hidden.
type Algorithm string

const (
	Plain   Algorithm = "plain"
	SipHash Algorithm = "siphash" // Causeway's: four passes with SipHash-1-3
	AES     Algorithm = "aes"     // the draft's: one pass for 16 octets, else four
)

// Config is what balancer and servers agree on. Lengths are in octets.
type Config struct {
	Number      int // 0 to 6
	Algorithm   Algorithm
	ServerIDLen int
	NonceLen    int
	Key         [16]byte // not used by Plain
}

func (c *Config) blockLen() int { return c.ServerIDLen + c.NonceLen }

func (c *Config) check() error {
	n := c.blockLen()
	switch {
	case c.Number < 0 || c.Number > 6:
		return fmt.Errorf("configuration %d does not exist: they are numbered from 0 to 6", c.Number)
	case c.ServerIDLen < 1 || c.NonceLen < 4 || n > 19:
		return errors.New("a server id has an octet or more, a nonce four, and both together at most 19")
	case c.Algorithm == SipHash && (n%2 != 0 || n < 6 || n > 12):
		return errors.New("with siphash, server id and nonce have an even number of octets together, 6 to 12")
	case c.Algorithm != Plain && c.Algorithm != SipHash && c.Algorithm != AES:
		return fmt.Errorf("unknown algorithm %q", c.Algorithm)
	}
	return nil
}

// Codec encodes connection ids of one configuration.
type Codec struct {
	config Config
	block  cipher.Block
}

// NewCodec checks the configuration and sets its key up.
func NewCodec(config Config) (*Codec, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	c := &Codec{config: config}
	if config.Algorithm == AES {
		var err error
		if c.block, err = aes.NewCipher(config.Key[:]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Encode gives the id of a server with a nonce that it has never used before. The low
// five bits of the first octet are those of random.
func (c *Codec) Encode(serverID, nonce []byte, random byte) ([]byte, error) {
	if len(serverID) != c.config.ServerIDLen || len(nonce) != c.config.NonceLen {
		return nil, errors.New("server id or nonce are not as long as configured")
	}
	id := make([]byte, 1, 20)
	id[0] = byte(c.config.Number)<<5 | random&0x1f
	id = append(append(id, serverID...), nonce...)
	switch {
	case c.config.Algorithm == Plain:
	case c.config.Algorithm == AES && c.config.blockLen() == aes.BlockSize:
		c.block.Encrypt(id[1:], id[1:])
	default:
		c.fourPasses(id[1:])
	}
	return id, nil
}

// fourPasses is the network of section 5.4.2, on both halves of the block. The middle
// octet of an odd block is cut in two.
func (c *Codec) fourPasses(block []byte) {
	n := len(block)
	half := (n + 1) / 2
	left := append([]byte(nil), block[:half]...)
	right := append([]byte(nil), block[n-half:]...)
	cut := func() {
		if n%2 == 1 {
			left[half-1] &= 0xf0
			right[0] &= 0x0f
		}
	}
	cut()
	for pass := byte(1); pass <= 4; pass++ {
		from, to := left, right
		if pass%2 == 0 {
			from, to = right, left
		}
		for i, mask := range c.function(pass, n, from)[:half] {
			to[i] ^= mask
		}
		cut()
	}
	copy(block, left)
	if n%2 == 1 {
		block[half-1] |= right[0]
		right = right[1:]
	}
	copy(block[half:], right)
}

// function is that of a pass; at least half of a block comes back.
func (c *Codec) function(pass byte, blockLen int, input []byte) []byte {
	if c.config.Algorithm == SipHash {
		var message [8]byte
		copy(message[:], input)
		message[6], message[7] = byte(blockLen), pass
		var out [8]byte
		binary.LittleEndian.PutUint64(out[:], sipHash13(&c.config.Key, binary.LittleEndian.Uint64(message[:])))
		return out[:]
	}
	var block [aes.BlockSize]byte
	copy(block[:], input)
	block[14], block[15] = byte(blockLen), pass
	c.block.Encrypt(block[:], block[:])
	return block[:]
}

// sipHash13 is SipHash-1-3 of eight octets.
func sipHash13(key *[16]byte, message uint64) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	v0, v1 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d
	v2, v3 := k0^0x6c7967656e657261, k1^0x7465646279746573
	round := func() {
		v0 += v1
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v3
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 += v3
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v2 = bits.RotateLeft64(v2, 32)
	}
	for _, word := range []uint64{message, 8 << 56} {
		v3 ^= word
		round()
		v0 ^= word
	}
	v2 ^= 0xff
	for i := 0; i < 3; i++ {
		round()
	}
	return v0 ^ v1 ^ v2 ^ v3
}
