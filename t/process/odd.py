#!/usr/bin/env python3
"""Odd requests by the thousand: none ends in a 5xx or a dead worker, and a
gateway that reads requests through ngx.var answers each as one that reads
them itself."""
import contextlib
import ipaddress
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import SOAK, Case, Connection, main, rule  # noqa: E402

TOML = (
    rule("login", "1/d", 3, match='{ path = "/login", method = ["POST", "GET"]'
         ' }')
    + rule("all", "1/d", 300)
    + rule("cookie", "1/d", 4, match='{ path = "/c/*" }', key=["cookie:sid"])
    + rule("key", "1/d", 4, match='{ path = "~*^/K", header = { X-Key = "*" '
           '} }', key=["header:X-Key", "arg:a", "host", "ua", "path",
                       "method"], missing_key="skip")
    + rule("strict", "1/d", 5, match='{ path = ["/s", "/s/*"] }',
           unless='{ header = { X-Pass = "yes" } }', key=["arg:t"],
           missing_key="deny", status=401)
    + rule("host", "1/d", 9, match='{ host = [".odd.test", "x.test"] }',
           mode="shadow")
    + '[[priority.rules]]\nname = "p"\nlevel = 1\n'
      'match = { path = "/c/*", header = { X-Key = "b" } }\n'
      '[priority]\nforward = true\n'
      '[client]\ntrusted_proxies = ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"'
      ']\n'
      '[lists]\nblocklist = ["203.0.113.0/24", "2001:db9::/32"]\n'
      'allowlist = ["203.0.113.77"]\n')

PATHS = ["/", "/login", "/c/1", "/c", "/k/1", "/K2", "/s", "/s/x", "/other",
         "//login", "/./login", "/x/../login", "/%6cogin", "/login/",
         "/c/%ff%fe", "/c/%00", "/%", "/%zz", "/..", "/c/../../x", "/s?t=1",
         "/s?t=", "/s?t", "/s?t=%00", "/s?T=1", "/k?a=1&a=2", "/k?a=%41",
         "/c/" + "x" * 3000, "/k?" + "a=" + "y" * 3000, "/c/{}*?[x]",
         "/login#x", "http://x.test/login", "*", "/c/\x01", "/\xff\xfe",
         "/login;x=1", "/login%20", "/%2e%2e/login", "/c//1//"]
ADDRESSES = ["198.51.100.1", "198.51.100.2", "203.0.113.9", "203.0.113.77",
             "10.1.1.1", "unknown", "", "garbage", "300.1.1.1", "010.0.0.1",
             "::1", "2001:db9::5", "[2001:db9::5]:443", "198.51.100.3:80",
             "::ffff:203.0.113.9", "fe80::1%eth0", "_x", "1.2.3.4/8", "\xff",
             "2001:db8::1", ",", "198.51.100.1 198.51.100.2", "0x7f.1"]
COOKIES = ["sid=a", "sid=b", "sid=", "SID=a", 'sid="a"', "x=1; sid=a",
           "x=1;sid=b;y", "sid = a", "sid", "sid=a=b", "=", ";;;", "\xff=\xfe",
           "sid=" + "z" * 2000, "xsid=a", "sid=a, sid=b", "a b; sid=c"]
HOSTS = ["localhost", "x.test", "a.odd.test", "ODD.test", "odd.test:80",
         "notodd.test", "x.test.", "[::1]", "a" * 200]
KEYS = ["a", "b", "", "  ", "\xff", "a,b", "k" * 2000, "\t", '"']
METHODS = ["GET", "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS",
           "PROPFIND", "BREW", "get"]


def request(chance):
    method = chance.choice(METHODS)
    path = chance.choice(PATHS)
    lines = ["%s %s HTTP/1.1" % (method, path),
             "Host: " + chance.choice(HOSTS), "Connection: close"]
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        lines.append("X-Forwarded-For: " + ", ".join(
            chance.choice(ADDRESSES) for _ in range(chance.randint(1, 4))))
    for _ in range(chance.choice((0, 1, 1, 2))):
        lines.append("Cookie: " + chance.choice(COOKIES))
    for _ in range(chance.choice((0, 1, 1, 2))):
        lines.append(chance.choice(("X-Key: ", "x-key:", "X-KEY: "))
                     + chance.choice(KEYS))
    if chance.random() < 0.2:
        lines.append("X-Pass: " + chance.choice(("yes", "no", "")))
    if chance.random() < 0.2:
        lines.append("X-Sluice-Level: 0")
    for _ in range(chance.choice((0, 1, 1, 2))):
        lines.append("User-Agent: " + chance.choice(("a", "b", "\xfe", "")))
    body = b""
    if method in ("POST", "PUT"):
        body = b"b" * chance.choice((0, 1, 5000))
        lines.append("Content-Length: %d" % len(body))
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body, method


def address(text):
    """One hop: an address, or None."""
    text = text.strip(" \t")
    found = re.fullmatch(r"\[([^\]]*)\](?::\d{1,5})?", text)
    if found:
        text = found.group(1)
        if ":" not in text:
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not re.fullmatch(r"\d{1,5}", port):
            return None
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def client(chain):
    """Whom the contract takes for the client: from the right, over trusted
    hops; a malformed one ends the walk at the last good."""
    trusted = [ipaddress.ip_network(n) for n in ("127.0.0.1/32", "10.0.0.0/8",
                                                 "2001:db8::/32")]
    last = ipaddress.ip_address("127.0.0.1")
    for hop in reversed(chain.split(",") if chain.strip() else []):
        ip = address(hop)
        if ip is None:
            return str(last)
        last = ip
        if not any(ip in net for net in trusted):
            break
    return str(last)


class Odd(Case):

    def ask(self, gw, data, method):
        connection = Connection(gw.address)
        try:
            with contextlib.suppress(OSError):
                connection.sock.sendall(data)
            answer = connection.answer(method)
            keep = {key: value for key, value in answer.headers.items()
                    if key.startswith("x-") and key != "x-worker"}
            # Times differ between the two by what passes in between.
            limit = answer.headers.get("ratelimit", "").rsplit(";", 1)[0]
            return (answer.status, keep, limit,
                    answer.headers.get("ratelimit-policy"),
                    answer.headers.get("content-type"))
        except (ConnectionResetError, ValueError, IndexError):
            return "closed"
        finally:
            connection.close()

    def test_the_client_is_whom_the_contract_says(self):
        gw = self.gateway(TOML, workers=2)
        chance = random.Random(21)
        hops = [a for a in ADDRESSES if "%" not in a and a != ","] + [
            "10.2.2.2", "10.3.3.3:80", " 10.4.4.4 ", "[2001:db8::9]",
            "[2001:db8::9]:1", "127.0.0.1", "[1.2.3.4]", "1.2.3.4:",
            "1.2.3.4:x", "[::1", "::1]", "1.2.3", "2001:db8::1::2"]
        connection = Connection(gw.address)
        seen = set()
        for n in range(20000 if SOAK else 4000):
            lines = [",".join(chance.choice(hops) for _ in range(
                chance.choice((1, 1, 2, 3, 5)))) for _ in range(
                    chance.choice((1, 1, 1, 2, 3)))]
            answer = connection.ask(ip=None, headers=[
                ("X-Forwarded-For", line) for line in lines])
            expected = client(", ".join(lines))
            self.assertEqual(answer.client, expected, (n, lines))
            seen.add(expected)
        connection.close()
        self.assertGreater(len(seen), 10)

    def test_read_either_way_they_are_answered_alike(self):
        more = dict(workers=1, http="large_client_header_buffers 8 16k;\n"
                    "underscores_in_headers on;",
                    server='add_header X-Level $sluice_level always;\n'
                           'add_header X-Seen $upstream_http_x always;')
        direct = self.gateway(TOML, **more)
        through = self.gateway(TOML, before_setup='require("resty.sluice.nginx'
                               '").expected.ngx_http_lua_ffi_var_get = "i4()"',
                               **more)
        self.assertIn("through ngx.var", through.log())
        self.assertNotIn("through ngx.var", direct.log())
        pids = direct.workers() + through.workers()
        chance = random.Random(20)
        seen = {}
        for n in range(20000 if SOAK else 3000):
            data, method = request(chance)
            one = self.ask(direct, data, method)
            other = self.ask(through, data, method)
            self.assertEqual(one, other, (n, data[:600]))
            status = one if one == "closed" else one[0]
            seen[status] = seen.get(status, 0) + 1
        self.assertFalse([s for s in seen if s != "closed" and s >= 500
                          and s != 501 and s != 505], seen)
        for status in (200, 400, 401, 403, 429):
            self.assertGreater(seen.get(status, 0), 20, seen)
        self.assertEqual(direct.workers() + through.workers(), pids)
        self.assertEqual(direct.requests_total(), through.requests_total())


if __name__ == "__main__":
    main()
