// SPDX-License-Identifier: Apache-2.0

package quiclb

import (
	"bytes"
	"encoding/csv"
	"encoding/hex"
	"os"
	"strconv"
	"testing"
)

func octets(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The vectors of the Rust implementation, crates/quic-lb.
func TestVectors(t *testing.T) {
	file, err := os.Open("../../../../quic-lb/testdata/vectors.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 150 {
		t.Fatalf("only %d vectors", len(rows))
	}
	for _, row := range rows[1:] {
		number, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		server, nonce := octets(t, row[3]), octets(t, row[4])
		config := Config{Number: number, Algorithm: Algorithm(row[1]), ServerIDLen: len(server), NonceLen: len(nonce)}
		copy(config.Key[:], octets(t, row[2]))
		codec, err := NewCodec(config)
		if err != nil {
			t.Fatalf("%v: %v", row, err)
		}
		id, err := codec.Encode(server, nonce, octets(t, row[5])[0])
		if err != nil || !bytes.Equal(id, octets(t, row[6])) {
			t.Errorf("%v: %x, %v", row, id, err)
		}
	}
}

func TestIDsNeverRepeat(t *testing.T) {
	for _, algorithm := range []Algorithm{Plain, SipHash, AES} {
		config := Config{Number: 3, Algorithm: algorithm, ServerIDLen: 2, NonceLen: 8}
		generator, err := NewGenerator(config, 300)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i := 0; i < 1000; i++ {
			id, err := generator.GenerateConnectionID()
			if err != nil || id.Len() != 11 || id.Bytes()[0]>>5 != 3 || seen[id.String()] {
				t.Fatalf("%s: id %d is %v, %v", algorithm, i, id, err)
			}
			seen[id.String()] = true
		}
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	good := Config{Number: 3, Algorithm: SipHash, ServerIDLen: 1, NonceLen: 9}
	for name, spoil := range map[string]func(*Config){
		"number":    func(c *Config) { c.Number = 7 },
		"short":     func(c *Config) { c.NonceLen = 3 },
		"odd":       func(c *Config) { c.NonceLen = 8 },
		"long":      func(c *Config) { c.NonceLen = 13 },
		"algorithm": func(c *Config) { c.Algorithm = "rot13" },
	} {
		bad := good
		spoil(&bad)
		if _, err := NewGenerator(bad, 1); err == nil {
			t.Errorf("%s was not refused", name)
		}
	}
	if _, err := NewGenerator(good, 256); err == nil {
		t.Error("a server id that does not fit was not refused")
	}
	generator, err := NewGenerator(good, 255)
	if err != nil {
		t.Fatal(err)
	}
	longer := good
	longer.NonceLen = 11
	if generator.Rotate(longer, 1) == nil {
		t.Error("ids of another length were not refused")
	}
}
