// SPDX-License-Identifier: Apache-2.0

// Command quic is the lab's second QUIC stack, quic-go and its http3 package. It
// speaks with the lab in lines: the first line of its input is its configuration,
// each further one a command; each is answered by one line that begins with
// "lab: ". The end of its input ends it.
//
//	quic serve   HTTP/3 server: GET /r/SIZE/SERVICE_US
//	quic load    HTTP/3 load: the pages come with the configuration
//	quic get     requests over TCP by net/http, one after another
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Longest line: a configuration with all pages of a load.
const maxLine = 256 << 20

func main() {
	roles := map[string]func(lines <-chan string) error{"serve": serve, "load": load, "get": get}
	var role func(<-chan string) error
	if len(os.Args) == 2 {
		role = roles[os.Args[1]]
	}
	if role == nil {
		fmt.Fprintln(os.Stderr, "usage: quic serve|load|get")
		os.Exit(2)
	}
	if err := role(readLines()); err != nil {
		answer("error: " + err.Error())
		os.Exit(1)
	}
}

// readLines gives the lines of standard input; the channel is closed at its end.
func readLines() <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(os.Stdin)
		scanner.Buffer(nil, maxLine)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	return lines
}

func answer(text string) {
	fmt.Println("lab: " + text)
}

// monotonicNs is CLOCK_MONOTONIC, the clock of the lab's other clients.
func monotonicNs() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return t.Nano()
}

func sleepUntil(atNs int64) {
	if wait := atNs - monotonicNs(); wait > 0 {
		time.Sleep(time.Duration(wait))
	}
}
