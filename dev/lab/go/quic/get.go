// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// get asks for a URL over TCP again and again, with net/http as it comes, but for the
// lab's certificate. Its configuration has four words: a URL, for how many seconds, a file
// for the log, and http1 or http2. A line of the log: a response's end, ns of wall time,
// and its latency, us; the first, which waits for the connection, has none.
func get(lines <-chan string) error {
	var url, file, version string
	var seconds float64
	if _, err := fmt.Sscan(<-lines, &url, &seconds, &file, &version); err != nil {
		return fmt.Errorf("the configuration is URL SECONDS LOG http1|http2: %w", err)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	log := bufio.NewWriter(out)
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: version == "http2",
	}}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for connected := false; time.Now().Before(end); connected = true {
		begun := time.Now()
		response, err := client.Get(url)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
		if (response.ProtoMajor == 2) != (version == "http2") {
			return fmt.Errorf("the server answered in %s", response.Proto)
		}
		ended := time.Now()
		took := float64(ended.Sub(begun).Nanoseconds()) / 1e3
		if connected {
			fmt.Fprintf(log, "%d %f\n", ended.UnixNano(), took)
		}
	}
	return log.Flush()
}
