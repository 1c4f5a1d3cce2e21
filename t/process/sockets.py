#!/usr/bin/env python3
"""Pools and what is open for long: WebSockets and event streams."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import main, soon  # noqa: E402
from pools import PoolCase, pool, request, say  # noqa: E402


class LongLived(PoolCase):
    """B79: what is open for long holds its slot for as long."""

    def test_b79_websockets_and_event_streams(self):
        seconds = 60 if os.environ.get("SLUICE_SOAK") else 20
        more = dict(limit=10, max_wait="100ms", timeout="5s")
        gw = self.gateway(
            pool("ws", match='{ path = "/b/ws" }', **more)
            + pool("sse", match='{ path = "/b/sse" }', **more)
            + pool("free", match='{ path = "/b/free/*" }', release="headers",
                   **more),
            workers=2,
            server='header_filter_by_lua_block { '
                   'require("resty.sluice").header() }')
        crowd = self.crowd(gw)
        upgrade = dict(headers=[("Upgrade", "websocket"),
                                ("Connection", "Upgrade")], close=False)

        def ws(path="/b/ws"):
            return crowd.send(request(path + "?ws=1", **upgrade))

        def sse(path="/b/sse"):
            return crowd.send(request(path + "?stream=1"))

        def answered(clients):
            self.assertTrue(crowd.wait(until=lambda: all(
                c.answered for c in clients)))
            return [c.status for c in clients]

        sockets = [ws() for _ in range(10)]
        streams = [sse() for _ in range(10)]
        free = []
        for _ in range(8):
            # Their slots are back as soon as they are open: 16 through 10.
            free += [ws("/b/free/x"), sse("/b/free/x")]
            answered(free[-2:])
            self.assertTrue(soon(lambda: self.in_flight(gw, "free") == 0, 1))
        self.assertEqual(answered(sockets), [101] * 10)
        self.assertEqual(answered(streams), [200] * 10)
        self.assertEqual({c.status for c in free}, {101, 200})
        everyone = sockets + streams + free

        end = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < end:
            rounds += 1
            self.assertEqual(answered([ws(), sse()]), [503, 503])
            self.assertEqual(self.in_flight(gw, "ws"), 10)
            self.assertEqual(self.in_flight(gw, "sse"), 10)
            # Each is alive: what is sent comes back, and events go on.
            for client in everyone:
                client.data = client.data[-1000:]
                if client.status == 101:
                    client.data = b""
                    client.sock.send(b"!")
            before = {c: len(c.data) for c in everyone}
            self.assertTrue(crowd.wait(until=lambda: all(
                len(c.data) > before[c] for c in everyone), seconds=3))
            pause = time.monotonic() + 2
            crowd.wait(until=lambda: time.monotonic() > pause, seconds=3)
        self.assertGreater(rounds, 5)
        self.assertEqual([c for c in everyone if c.done], [])

        # One closes: the next comes in within a second.
        for some, another in ((sockets, ws), (streams, sse)):
            for client, reset in ((some[0], False), (some[1], True)):
                crowd.leave(client, reset)
                left, status = time.monotonic(), 0
                while status not in (101, 200):
                    next = another()
                    status, = answered([next])
                    self.assertLess(time.monotonic() - left, 1 + 1)
                say("next admitted %.0f ms after one had closed"
                    % (1000 * (time.monotonic() - left)))
                some.append(next)
        for client in crowd.clients:
            crowd.leave(client)
        for name in ("ws", "sse", "free"):
            self.assertTrue(soon(lambda: self.in_flight(gw, name) == 0, 3),
                            name)
        self.assertTrue(soon(lambda: self.backend.at_work == 0, 3))

    def test_old_sessions_keep_their_slots_over_a_reload(self):
        gw = self.gateway(pool(limit=3, max_wait="100ms"), workers=2)
        self.workers_change = True
        crowd = self.crowd(gw)
        sockets = [crowd.send(request("/b/x?ws=1", headers=[
            ("Upgrade", "websocket"), ("Connection", "Upgrade")], close=False))
            for _ in range(3)]
        self.assertTrue(crowd.wait(until=lambda: all(
            c.status == 101 for c in sockets)))
        gw.hup()
        self.assertEqual(gw.ask(path="/b/x").status, 503)
        self.assertEqual(self.in_flight(gw), 3)
        for client in sockets:
            crowd.leave(client)
        self.assertTrue(soon(lambda: self.in_flight(gw) == 0, 2))
        self.assertEqual(gw.ask(path="/b/x").status, 200)
        self.assertTrue(soon(lambda: not gw.leavers(), 5))


if __name__ == "__main__":
    main()
