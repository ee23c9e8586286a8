// SPDX-License-Identifier: Apache-2.0
/*
 * A ping-pong client as plain as can be, for comparison with `causeway rtt`: one
 * connection, blocking send() and recv(), CLOCK_MONOTONIC around both, every round trip
 * kept and sorted. It talks to `causeway rtt serve`, so that only the clients differ.
 *
 *   ping_pong ADDRESS PORT BYTES SECONDS  ->  "mean p50 p99 rate", microseconds
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 512, BYTES_MAX = 65536, VALUES_MAX = 1 << 23 };

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int open_stream(const char *address, const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (fd < 0 || inet_pton(AF_INET, address, &to.sin_addr) != 1)
		fail("socket");
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
		fail("connect");
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0)
		fail("TCP_NODELAY");
	return fd;
}

static void put(int fd, const char *text)
{
	if (send(fd, text, strlen(text), MSG_NOSIGNAL) != (ssize_t)strlen(text))
		fail("send");
}

static void get_line(int fd, char line[LINE])
{
	int n = 0;

	while (n < LINE - 1 && recv(fd, line + n, 1, 0) == 1 && line[n] != '\n')
		n++;
	line[n] = 0;
}

/* A session and one stream of it: crates/rtt/src/protocol.rs. */
static int join(const char *address, const char *port, const char *bytes, int *session)
{
	char line[LINE], hello[LINE], *token;
	int fd;

	*session = open_stream(address, port);
	snprintf(hello, sizeof(hello), "{\"causeway_rtt\":1,\"request\":%s,\"response\":%s}\n", bytes,
		 bytes);
	put(*session, hello);
	get_line(*session, line);
	token = strstr(line, "\"token\":\"");
	if (!token || strlen(token) < 25) {
		fprintf(stderr, "no token in %s\n", line);
		exit(1);
	}
	fd = open_stream(address, port);
	snprintf(hello, sizeof(hello), "rr %.16s\n", token + 9);
	put(fd, hello);
	get_line(fd, line);
	if (strcmp(line, "ok") != 0) {
		fprintf(stderr, "refused: %s\n", line);
		exit(1);
	}
	return fd;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
	static char message[BYTES_MAX];
	static uint32_t values[VALUES_MAX];
	uint64_t start, sent, now, end, n = 0, sum = 0;
	int fd, session;
	size_t bytes;

	if (count != 5)
		return 2;
	bytes = (size_t)atoi(arguments[3]);
	if (bytes < 1 || bytes > BYTES_MAX)
		return 2;
	fd = join(arguments[1], arguments[2], arguments[3], &session);
	start = now = now_ns();
	end = start + (uint64_t)(atof(arguments[4]) * 1e9);
	while (now < end && n < VALUES_MAX) {
		sent = now_ns();
		if (send(fd, message, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
			fail("send");
		if (recv(fd, message, bytes, MSG_WAITALL) != (ssize_t)bytes)
			fail("recv");
		now = now_ns();
		values[n++] = (uint32_t)(now - sent);
		sum += now - sent;
	}
	if (n == 0)
		return 1;
	qsort(values, n, sizeof(values[0]), compare);
	printf("%.3f %.3f %.3f %.1f\n", (double)sum / (double)n / 1e3, values[n / 2] / 1e3,
	       values[n * 99 / 100] / 1e3, (double)n * 1e9 / (double)(now - start));
	close(session);
	return 0;
}
