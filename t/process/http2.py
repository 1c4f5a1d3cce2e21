#!/usr/bin/env python3
"""B100: streams of HTTP/2 that are opened and reset. The client speaks just
enough of RFC 9113: literal header fields, no Huffman coding."""
import os
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import Case, Connection, free_port, main, rule, soon  # noqa: E402
from pools import PoolCase, pool  # noqa: E402

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8


class Http2:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        self.sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                          + self.frame(SETTINGS, 0, 0, b"")
                          + self.frame(WINDOW, 0, 0, struct.pack(
                              ">I", (1 << 31) - 70000)))
        self.file = self.sock.makefile("rb")
        self.next = 1
        self.closed = False

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] \
            + struct.pack(">BBI", kind, flags, stream) + payload

    @staticmethod
    def field(name, value):
        def text(data):
            assert len(data) < 127
            return bytes([len(data)]) + data
        return b"\x00" + text(name.encode()) + text(value.encode())

    def open(self, path, ip, extra=()):
        stream, self.next = self.next, self.next + 2
        block = b"".join(self.field(*pair) for pair in (
            (":method", "GET"), (":scheme", "http"), (":path", path),
            (":authority", "localhost"), ("x-forwarded-for", ip)) + extra)
        # END_STREAM and END_HEADERS.
        return stream, self.frame(HEADERS, 5, stream, block)

    def reset(self, stream):
        return self.frame(RST, 0, stream, struct.pack(">I", 8))

    def send(self, data):
        self.sock.sendall(data)

    def statuses(self, n, seconds=10):
        """Status of the next n answers, by stream."""
        found = {}
        self.sock.settimeout(seconds)
        while len(found) < n:
            head = self.file.read(9)
            if len(head) < 9:
                self.closed = True
                break
            size = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self.file.read(size)
            if kind == HEADERS:
                found[stream] = self.status(payload)
            elif kind == SETTINGS and not flags & 1:
                self.send(self.frame(SETTINGS, 1, 0, b""))
            elif kind == PING and not flags & 1:
                self.send(self.frame(PING, 1, 0, payload))
            elif kind == GOAWAY:
                self.closed = True
                break
        return found

    @staticmethod
    def status(block):
        while block and block[0] & 0xe0 == 0x20:
            block = block[1:]  # a change of the table's size
        indexed = {0x88: 200, 0x89: 204, 0x8b: 304, 0x8c: 400, 0x8d: 404,
                   0x8e: 500}
        if block[0] in indexed:
            return indexed[block[0]]
        size = block[1]
        assert not size & 0x80, "Huffman coded"
        return int(block[2:2 + size])

    def close(self):
        self.file.close()
        self.sock.close()


def flood_of_resets(port, total, path, is_reset):
    """Streams that are opened, and reset at once if `is_reset` of their
    number."""
    opened = 0
    while opened < total:
        client = Http2(port)
        for _ in range(25):
            batch = b""
            for _ in range(20):
                stream, data = client.open(path, "198.51.100.1")
                batch += data
                if is_reset(opened):
                    batch += client.reset(stream)
                opened += 1
            try:
                client.send(batch)
            except OSError:
                break  # nginx may end such a connection
            time.sleep(0.002)
        client.close()


class Streams(Case):
    def server(self, toml):
        port, upstream = free_port(), free_port()
        gw = self.gateway(
            toml, workers=2, listen="listen 127.0.0.1:%d http2;" % port,
            http="""
                lua_shared_dict reached 1m;
                server {
                    listen 127.0.0.1:%d;
                    location / {
                        content_by_lua_block {
                            ngx.shared.reached:incr("n", 1, 0)
                            ngx.sleep(0.02)
                            ngx.print("up")
                        }
                    }
                }""" % upstream,
            server="http2_max_concurrent_streams 512;\n"
                   "location / { proxy_pass http://127.0.0.1:%d; }" % upstream)
        return gw, port

    def gateway(self, *args, **more):
        # Our location / stands in for the default one.
        gw = self.idle_gateway(*args, **more)
        import gateway as library
        text = library.NGINX_CONF
        cut = text.index("        location / {\n            content_by_lua")
        end = text.index("    server {\n        listen 127.0.0.1:%(admin)d")
        library.NGINX_CONF = text[:cut] + "    }\n" + text[end:]
        try:
            return gw.start()
        finally:
            library.NGINX_CONF = text

    def test_streams_of_one_connection_count_each(self):
        gw, port = self.server(rule("r", "1/d", 20))
        client = Http2(port)
        streams = [client.open("/", "198.51.100.1") for _ in range(50)]
        client.send(b"".join(data for _, data in streams))
        counts = {}
        for status in client.statuses(50).values():
            counts[status] = counts.get(status, 0) + 1
        client.close()
        self.assertEqual(counts, {200: 20, 429: 30})
        self.assertEqual(gw.requests_total()["pass"], 20)
        self.assertEqual(gw.requests_total()["limited"], 30)

    def test_a_flood_of_resets(self):
        gw, port = self.server(rule("r", "100/10s", 100))
        began = time.monotonic()
        flood_of_resets(port, 5000, "/", lambda _: True)
        took = time.monotonic() - began
        # Meanwhile and after it, an honest client is served.
        honest = gw.ask(ip="198.51.100.2")
        self.assertEqual(honest.status, 200)
        self.assertTrue(soon(lambda: gw.ask(ip="198.51.100.3").status == 200))
        time.sleep(0.5)
        reached = int(gw.call('return ngx.shared.reached:get("n") or 0'))
        self.assertLessEqual(reached, 100 + 10 * (took + 1) + 1 + 2)
        total = gw.requests_total()
        self.assertLessEqual(total["pass"], 100 + 10 * (took + 1) + 1 + 2)
        self.assertGreater(sum(total.values()), 200)

    def test_split_cookie_fields_are_one(self):
        """B45 over HTTP/2."""
        gw, port = self.server(rule("r", "1/d", 2, key=["cookie:sid"]))
        client = Http2(port)
        statuses = []
        for extra in ((("cookie", "a=1"), ("cookie", "sid=abc")),
                      (("cookie", "sid=abc"), ("cookie", "b=2")),
                      (("cookie", "sid=abc; a=1"),),
                      (("cookie", "sid=other"),)):
            stream, data = client.open("/", "198.51.100.1", extra)
            client.send(data)
            statuses.append(client.statuses(1)[stream])
        client.close()
        self.assertEqual(statuses, [200, 200, 429, 200])


class Pools(PoolCase):
    def server(self, toml):
        port = free_port()
        return self.gateway(toml, workers=2,
                            listen="listen 127.0.0.1:%d http2;" % port,
                            server="http2_max_concurrent_streams 512;"), port

    def core(self, client, n, path):
        return [client.open(path, "198.51.100.1", (("x-user", "u%d" % i),))
                for i in range(n)]

    def test_streams_wait_each_for_itself(self):
        gw, port = self.server(pool(limit=3, max_wait="10s"))
        client = Http2(port)
        client.send(b"".join(data for _, data in self.core(
            client, 20, "/b/0/x?hold=a")))
        self.assertTrue(soon(lambda: self.waiting(gw) == 17))
        self.assertEqual(self.in_flight(gw), 3)
        self.backend.release("a", 20)
        self.assertEqual(set(client.statuses(20).values()), {200})
        client.close()
        self.assertLessEqual(self.backend.peak, 3)

    def test_streams_that_are_reset_while_they_wait(self):
        """Their places are free, by RST_STREAM and with the connection."""
        gw, port = self.server(pool(limit=1, capacity=100, max_wait="20s"))
        client = Http2(port)
        client.send(self.core(client, 1, "/b/0/x?hold=a")[0][1])
        self.assertTrue(soon(lambda: self.backend.at_work == 1))
        for round in range(3):
            other = Http2(port)
            streams = self.core(other, 50, "/b/0/x?id=gone")
            other.send(b"".join(data for _, data in streams))
            self.assertTrue(soon(lambda: self.waiting(gw) == 50))
            other.send(b"".join(other.reset(stream)
                                for stream, _ in streams[:25]))
            self.assertTrue(soon(lambda: self.waiting(gw) == 25, 2))
            other.close()
            self.assertTrue(soon(lambda: self.waiting(gw) == 0, 2))
        self.backend.release("a")
        self.assertEqual(set(client.statuses(1).values()), {200})
        client.close()
        self.assertEqual(self.backend.ids(), [])

    def test_a_flood_of_resets_leaves_no_slot_taken(self):
        gw, port = self.server(pool(limit=4, capacity=50, max_wait="1s"))
        flood_of_resets(port, 3000, "/b/x?s=0.002", lambda number: number % 3)
        self.at_rest(gw, 5)
        self.assertLessEqual(self.backend.peak, 4 + 4)
        self.assertEqual(gw.ask(path="/b/x").status, 200)


if __name__ == "__main__":
    main()
