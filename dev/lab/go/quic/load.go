// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// loadConfig has everything drawn already: chance is the lab's business.
type loadConfig struct {
	Target      string `json:"target"`
	Certificate string `json:"certificate"`
	ServerName  string `json:"server_name"`
	Outstanding int    `json:"outstanding"`
	TimeoutMs   int64  `json:"timeout_ms"`
	StartNs     int64  `json:"start_ns"`
	EndNs       int64  `json:"end_ns"`
	IntervalNs  int64  `json:"interval_ns"`
	MigrateMs   int64  `json:"migrate_ms"` // 0: clients stay where they are
	Users       []struct {
		Slot    int        `json:"slot"`
		PhaseNs int64      `json:"phase_ns"`
		AgesNs  []int64    `json:"ages_ns"` // of connections, used in turn
		Pages   [][]object `json:"pages"`
	} `json:"users"`
}

type object struct {
	Parent    int `json:"parent"` // -1: the root
	Size      int `json:"size"`
	ServiceUs int `json:"service_us"`
}

// connection and response are the lab's own log entries.
type connection struct {
	Slot        int    `json:"slot"`
	Local       string `json:"local"`
	OpenNs      int64  `json:"open_ns"`
	ConnectedNs int64  `json:"connected_ns"`
	CloseNs     int64  `json:"close_ns"`
	Fault       string `json:"fault"`
	Lost        int    `json:"lost"`
}

type response struct {
	Connection int    `json:"connection"`
	Page       int    `json:"page"`
	ID         int    `json:"id"`
	Parent     int    `json:"parent"` // -1: none
	IntendedNs int64  `json:"intended_ns"`
	SendNs     int64  `json:"send_ns"`
	LastNs     int64  `json:"last_ns"`
	Size       int    `json:"size"`
	Real       string `json:"real"`
}

type loadLog struct {
	mutex       sync.Mutex
	Connections []*connection `json:"connections"`
	Responses   []response    `json:"responses"`
	Migrations  int           `json:"migrations"`
	CPUNs       int64         `json:"cpu_ns"`
}

type world struct {
	loadConfig
	target  *net.UDPAddr
	roots   *x509.CertPool
	log     loadLog
	stopped atomic.Bool // no page begins any more
}

func load(lines <-chan string) error {
	w := &world{roots: x509.NewCertPool()}
	if err := json.Unmarshal([]byte(<-lines), &w.loadConfig); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	pem, err := os.ReadFile(w.Certificate)
	if err != nil {
		return err
	}
	if !w.roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate", w.Certificate)
	}
	if w.target, err = net.ResolveUDPAddr("udp", w.Target); err != nil {
		return err
	}
	answer("ready")
	go func() {
		<-lines // "stop", or the end of the lab
		w.stopped.Store(true)
	}()
	var users sync.WaitGroup
	for i := range w.Users {
		users.Add(1)
		go func(i int) {
			defer users.Done()
			newUser(w, i).run()
		}(i)
	}
	users.Wait()
	time.Sleep(200 * time.Millisecond) // closing words
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err == nil {
		w.log.CPUNs = used.Utime.Nano() + used.Stime.Nano()
	}
	text, err := json.Marshal(&w.log)
	if err != nil {
		return err
	}
	answer(string(text))
	return nil
}

// open is a connection in use.
type open struct {
	number   int // index into the log
	logged   *connection
	conn     *quic.Conn
	http     *http3.ClientConn
	paths    []*quic.Transport // where it is, and where it was
	retireNs int64
	waiting  int
	arrivals chan arrival
	mutex    sync.Mutex // of the paths
}

type arrival struct {
	object   int
	response response
	fault    string
}

func (w *world) dial(slot int, ageNs int64) (*open, string) {
	logged := &connection{Slot: slot, Local: w.Target, OpenNs: monotonicNs()}
	w.log.mutex.Lock()
	number := len(w.log.Connections)
	w.log.Connections = append(w.log.Connections, logged)
	w.log.mutex.Unlock()
	o := &open{
		number:   number,
		logged:   logged,
		retireNs: logged.OpenNs + ageNs,
		arrivals: make(chan arrival, w.Outstanding),
	}
	fault := w.handshake(o)
	if fault != "" {
		logged.Fault, logged.CloseNs = fault, monotonicNs()
		return nil, fault
	}
	logged.ConnectedNs = monotonicNs()
	return o, ""
}

// bind opens a socket of its own on the address from which the target is reached.
func (w *world) bind() (*quic.Transport, string) {
	probe, err := net.DialUDP("udp", nil, w.target)
	if err != nil {
		return nil, "unreachable"
	}
	local := &net.UDPAddr{IP: probe.LocalAddr().(*net.UDPAddr).IP}
	probe.Close()
	socket, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, "send_failed"
	}
	return &quic.Transport{Conn: socket}, ""
}

// handshake gives each connection a port of its own.
func (w *world) handshake(o *open) string {
	path, fault := w.bind()
	if fault != "" {
		return fault
	}
	o.paths = []*quic.Transport{path}
	o.logged.Local = path.Conn.LocalAddr().String()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(w.TimeoutMs)*time.Millisecond)
	defer cancel()
	idle := time.Duration(w.TimeoutMs) * time.Millisecond
	if idle < time.Minute {
		idle = time.Minute
	}
	conn, err := path.Dial(ctx, w.target, &tls.Config{
		RootCAs: w.roots, ServerName: w.ServerName, NextProtos: []string{"h3"},
	}, &quic.Config{MaxIdleTimeout: idle, Versions: []quic.Version{quic.Version1}})
	if err != nil {
		path.Close()
		path.Conn.Close()
		return faultOf(err, "connect_timeout")
	}
	o.conn = conn
	o.http = (&http3.Transport{DisableCompression: true}).NewClientConn(conn)
	if w.MigrateMs > 0 {
		go w.wander(o)
	}
	return ""
}

// wander moves the connection to another port again and again, until it ends: the new
// path is probed, then taken.
func (w *world) wander(o *open) {
	every := time.Duration(w.MigrateMs) * time.Millisecond
	clock := time.NewTicker(every)
	defer clock.Stop()
	for {
		select {
		case <-o.conn.Context().Done():
			return
		case <-clock.C:
		}
		next, fault := w.bind()
		if fault != "" {
			continue // without a socket to spare it stays where it is
		}
		o.mutex.Lock()
		o.paths = append(o.paths, next)
		o.mutex.Unlock()
		if w.move(o.conn, next, every) == nil {
			w.log.mutex.Lock()
			w.log.Migrations++
			w.log.mutex.Unlock()
		}
	}
}

func (w *world) move(conn *quic.Conn, to *quic.Transport, limit time.Duration) error {
	path, err := conn.AddPath(to)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(conn.Context(), limit)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		path.Close()
		return err
	}
	return path.Switch()
}

func (o *open) close(fault string) {
	o.logged.CloseNs, o.logged.Fault = monotonicNs(), fault
	if fault != "" {
		o.logged.Lost = o.waiting
	}
	o.conn.CloseWithError(0x100, "") // H3_NO_ERROR
	time.AfterFunc(100*time.Millisecond, func() {
		o.mutex.Lock()
		defer o.mutex.Unlock()
		for _, path := range o.paths {
			path.Close()
			path.Conn.Close()
		}
	})
}

// fetch sends one request and reports its answer.
func (w *world) fetch(o *open, index int, r response, serviceUs int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(w.TimeoutMs)*time.Millisecond)
	defer cancel()
	url := fmt.Sprintf("https://%s/r/%d/%d", w.ServerName, r.Size, serviceUs)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	fault := ""
	if err == nil {
		r.SendNs = monotonicNs()
		fault, err = w.exchange(o, request, &r)
	}
	if err != nil {
		fault = faultOf(err, "response_timeout")
	}
	r.LastNs = monotonicNs()
	o.arrivals <- arrival{index, r, fault}
}

func (w *world) exchange(o *open, request *http.Request, r *response) (string, error) {
	answer, err := o.http.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	size, err := io.Copy(io.Discard, answer.Body)
	if err != nil {
		return "", err
	}
	r.Real = answer.Header.Get("X-Real")
	if answer.StatusCode != http.StatusOK || size != int64(r.Size) {
		return "bad_response", nil
	}
	return "", nil
}

// faultOf is the lab's word for what went wrong; late is that for a timeout.
func faultOf(err error, late string) string {
	var timeout net.Error
	var reset *quic.StatelessResetError
	var closed *quic.ApplicationError
	var transport *quic.TransportError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return late
	case errors.As(err, &reset):
		return "reset"
	case errors.As(err, &transport) && transport.ErrorCode == quic.ConnectionRefused:
		return "refused"
	case errors.As(err, &transport) && transport.ErrorCode == quic.ConnectionIDLimitError:
		return "id_limit"
	case errors.As(err, &closed), errors.As(err, &transport):
		return "short_read"
	default:
		return "bad_response"
	}
}
