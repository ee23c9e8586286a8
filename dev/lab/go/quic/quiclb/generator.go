// SPDX-License-Identifier: Apache-2.0

package quiclb

import (
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/quic-go/quic-go"
)

// Generator issues the connection ids of one server.
type Generator struct {
	mutex  sync.Mutex
	codec  *Codec
	server []byte
	nonce  []byte // of an encrypted configuration: counted from a random one
	idLen  int
}

var _ quic.ConnectionIDGenerator = (*Generator)(nil)

// NewGenerator is for server number server under a configuration.
func NewGenerator(config Config, server uint32) (*Generator, error) {
	g := &Generator{idLen: 1 + config.blockLen()}
	return g, g.Rotate(config, server)
}

// Rotate issues ids of another configuration from now on; ids issued before stay
// valid. Its ids must have the same length: quic-go finds ids in packets by it.
func (g *Generator) Rotate(config Config, server uint32) error {
	codec, err := NewCodec(config)
	if err != nil {
		return err
	}
	if given := 1 + config.blockLen(); given != g.idLen {
		return fmt.Errorf("connection ids have %d octets; the new configuration has %d", g.idLen, given)
	}
	id := make([]byte, config.ServerIDLen)
	for i := len(id) - 1; i >= 0; i-- {
		id[i] = byte(server)
		server >>= 8
	}
	if server != 0 {
		return fmt.Errorf("the server id does not fit into %d octets", config.ServerIDLen)
	}
	nonce := make([]byte, config.NonceLen)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.codec, g.server, g.nonce = codec, id, nonce
	return nil
}

// GenerateConnectionID gives an id that was never issued before.
func (g *Generator) GenerateConnectionID() (quic.ConnectionID, error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	random := make([]byte, 1+len(g.nonce))
	if _, err := rand.Read(random); err != nil {
		return quic.ConnectionID{}, err
	}
	if g.codec.config.Algorithm == Plain {
		copy(g.nonce, random[1:]) // observers see it
	} else {
		increment(g.nonce)
	}
	id, err := g.codec.Encode(g.server, g.nonce, random[0])
	if err != nil {
		return quic.ConnectionID{}, err
	}
	return quic.ConnectionIDFromBytes(id), nil
}

// ConnectionIDLen is the length of all ids.
func (g *Generator) ConnectionIDLen() int { return g.idLen }

func increment(number []byte) {
	for i := len(number) - 1; i >= 0; i-- {
		number[i]++
		if number[i] != 0 {
			return
		}
	}
}
