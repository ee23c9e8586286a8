# SPDX-License-Identifier: Apache-2.0
"""Clients and servers on Python's usual libraries, for the scenario `everyday`.

    clients.py WHAT TARGET PAUSE_MS SECONDS LOG     one request after another, a pause between
    clients.py serve-websocket|serve-grpc PORT      answers each message after 5 ms

A line of the log: the response's end, ns of wall time, and its latency, us.
"""

import sys
import time
import urllib.parse

SERVICE_S = 0.005


def http_client(target):
    import http.client

    url = urllib.parse.urlparse(target)
    connection = http.client.HTTPConnection(url.hostname, url.port or 80)

    def ask():
        connection.request("GET", url.path)
        connection.getresponse().read()

    return ask


def requests_session(target, body=None):
    import requests
    import urllib3

    urllib3.disable_warnings()
    session = requests.Session()
    session.verify = False
    session.trust_env = False  # no bundle of certificates from outside
    if body is None:
        return lambda: session.get(target).content
    return lambda: session.post(target, data=body).content


def memcached(target):
    from pymemcache.client.base import Client

    client = Client((target, 11211), no_delay=True)
    client.set("key", b"x" * 300)
    return lambda: client.get("key")


def websocket(target):
    import asyncio

    import websockets

    loop = asyncio.new_event_loop()

    async def connect():
        return await websockets.connect(target)

    socket = loop.run_until_complete(connect())

    async def echo():
        await socket.send(b"x" * 200)
        await socket.recv()

    return lambda: loop.run_until_complete(echo())


def grpc_unary(target):
    import grpc

    call = grpc.insecure_channel(target).unary_unary("/lab.Echo/One")
    return lambda: call(b"x" * 200)


def grpc_stream(target):
    import queue

    import grpc

    messages = queue.Queue()
    call = grpc.insecure_channel(target).stream_stream("/lab.Echo/Many")
    answers = call(iter(messages.get, None))

    def ask():
        messages.put(b"x" * 200)
        next(answers)

    return ask


def serve_websocket(port):
    import asyncio

    import websockets

    async def echo(socket):
        async for message in socket:
            await asyncio.sleep(SERVICE_S)
            await socket.send(message)

    async def serve():
        async with websockets.serve(echo, "0.0.0.0", port):
            await asyncio.Future()

    asyncio.run(serve())


def serve_grpc(port):
    import concurrent.futures

    import grpc

    def one(message, _context):
        time.sleep(SERVICE_S)
        return message

    def many(messages, context):
        for message in messages:
            yield one(message, context)

    handlers = {
        "One": grpc.unary_unary_rpc_method_handler(one),
        "Many": grpc.stream_stream_rpc_method_handler(many),
    }
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service = grpc.method_handlers_generic_handler("lab.Echo", handlers)
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    server.wait_for_termination()


CLIENTS = {
    "http": http_client,
    "requests": requests_session,
    "requests-post": lambda target: requests_session(target, b"x" * 3000),
    "memcached": memcached,
    "websocket": websocket,
    "grpc-unary": grpc_unary,
    "grpc-stream": grpc_stream,
}
SERVERS = {"serve-websocket": serve_websocket, "serve-grpc": serve_grpc}


def main():
    what = sys.argv[1]
    if what in SERVERS:
        SERVERS[what](int(sys.argv[2]))
        return
    target, pause_s, seconds = sys.argv[2], float(sys.argv[3]) / 1000, float(sys.argv[4])
    ask = CLIENTS[what](target)
    # It may wait for the connection.
    ask()
    lines = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic_ns()
        ask()
        took_us = (time.monotonic_ns() - begun) / 1000
        lines.append(f"{time.time_ns()} {took_us}\n")
        time.sleep(pause_s)
    with open(sys.argv[5], "w") as log:
        log.writelines(lines)


main()
