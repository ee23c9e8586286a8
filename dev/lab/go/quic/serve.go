// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"causeway/lab/quic/quiclb"
)

// The largest body.
const maxBody = 1 << 20

// serverConfig has the fields of the lab's own type of that name.
type serverConfig struct {
	Real        string `json:"real"`
	Port        int    `json:"port"`
	Order       string `json:"order"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Cid         *cid   `json:"cid"`
}

// cid has the fields of the lab's own type of that name.
type cid struct {
	Number      int              `json:"number"`
	Algorithm   quiclb.Algorithm `json:"algorithm"`
	ServerIDLen int              `json:"server_id_len"`
	NonceLen    int              `json:"nonce_len"`
	Key         string           `json:"key"`
	Server      uint32           `json:"server"`
}

func (c *cid) config() (quiclb.Config, error) {
	config := quiclb.Config{
		Number: c.Number, Algorithm: c.Algorithm,
		ServerIDLen: c.ServerIDLen, NonceLen: c.NonceLen,
	}
	key, err := hex.DecodeString(c.Key)
	if err == nil && copy(config.Key[:], key) != len(config.Key) {
		err = errors.New("a key has 16 octets")
	}
	return config, err
}

type server struct {
	config serverConfig
	filler []byte
	factor atomic.Uint64     // bits of a float64
	ids    *quiclb.Generator // nil: random ones
}

// line is what the requests of one connection share, and their handler.
type line struct {
	*server
	turn    sync.Mutex // order seq: held by the request that is served
	mutex   sync.Mutex
	batchNs int64 // order batch: when those that wait now are done
}

func serve(lines <-chan string) error {
	s := &server{filler: []byte(strings.Repeat("causeway", maxBody/8))}
	s.factor.Store(math.Float64bits(1))
	if err := json.Unmarshal([]byte(<-lines), &s.config); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if c := s.config.Cid; c != nil {
		config, err := c.config()
		if err != nil {
			return fmt.Errorf("cid: %w", err)
		}
		if s.ids, err = quiclb.NewGenerator(config, c.Server); err != nil {
			return fmt.Errorf("cid: %w", err)
		}
	}
	for _, network := range []string{"udp4", "udp6"} {
		if err := s.listen(network); err != nil {
			return err
		}
	}
	answer("ready")
	for command := range lines {
		if err := s.obey(command); err != nil {
			answer("error: " + err.Error())
		} else {
			answer("ok")
		}
	}
	return nil
}

func (s *server) obey(command string) error {
	if strings.HasPrefix(command, "rotate ") {
		return s.rotate(strings.TrimPrefix(command, "rotate "))
	}
	if !strings.HasPrefix(command, "factor ") {
		return fmt.Errorf("unknown command %q", command)
	}
	factor, err := strconv.ParseFloat(strings.TrimPrefix(command, "factor "), 64)
	if err != nil {
		return fmt.Errorf("factor: %w", err)
	}
	s.factor.Store(math.Float64bits(factor))
	return nil
}

func (s *server) rotate(text string) error {
	var next cid
	if err := json.Unmarshal([]byte(text), &next); err != nil {
		return err
	}
	if s.ids == nil {
		return errors.New("ids are random here")
	}
	config, err := next.config()
	if err != nil {
		return err
	}
	return s.ids.Rotate(config, next.Server)
}

func (s *server) listen(network string) error {
	certificate, err := tls.LoadX509KeyPair(s.config.Certificate, s.config.Key)
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP(network, &net.UDPAddr{Port: s.config.Port})
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: conn, StatelessResetKey: new(quic.StatelessResetKey)}
	if s.ids != nil {
		transport.ConnectionIDGenerator = s.ids
	}
	if _, err := rand.Read(transport.StatelessResetKey[:]); err != nil {
		return err
	}
	listener, err := transport.ListenEarly(
		http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}}),
		&quic.Config{MaxIncomingStreams: 256, Allow0RTT: true},
	)
	if err != nil {
		return err
	}
	go s.accept(listener)
	return nil
}

func (s *server) accept(listener *quic.EarlyListener) {
	for {
		conn, err := listener.Accept(context.Background())
		if err != nil {
			return
		}
		h3 := &http3.Server{Handler: &line{server: s}}
		go h3.ServeQUICConn(conn) // how it ended is the client's to report
	}
}

// ServeHTTP answers GET /r/SIZE/SERVICE_US with SIZE bytes after SERVICE_US x
// factor microseconds.
func (l *line) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var size int
	var serviceUs int64
	if n, err := fmt.Sscanf(r.URL.Path, "/r/%d/%d", &size, &serviceUs); n != 2 || err != nil || size < 0 {
		http.NotFound(w, r)
		return
	}
	if size > maxBody {
		size = maxBody
	}
	factor := math.Float64frombits(l.factor.Load())
	l.wait(int64(float64(serviceUs) * factor * 1000))
	w.Header().Set("X-Real", l.config.Real)
	w.Header().Set("Content-Length", strconv.Itoa(size))
	w.Write(l.filler[:size]) // a client that has gone logs that itself
}

// wait returns when the service is done.
func (l *line) wait(serviceNs int64) {
	switch l.config.Order {
	case "seq":
		l.turn.Lock()
		defer l.turn.Unlock()
		sleepUntil(monotonicNs() + serviceNs)
	case "batch":
		sleepUntil(l.batch(monotonicNs(), serviceNs))
	default:
		sleepUntil(monotonicNs() + serviceNs)
	}
}

// batch tells when the batch that a request joins at now is done.
func (l *line) batch(now, serviceNs int64) int64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.batchNs <= now {
		l.batchNs = now + serviceNs
	}
	return l.batchNs
}
