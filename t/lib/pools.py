"""What the harnesses of pools share: a backend that does as it is told, in an
nginx of its own, and a crowd of thousands of clients in one thread."""
import contextlib
import errno
import heapq
import os
import select
import signal
import socket
import subprocess
import time

import gateway
from gateway import (TMP, Case, Connection, StartError, alive, children,
                     free_port, modules, soon, temp_paths)

HERE = os.path.dirname(os.path.abspath(__file__))

BACKEND_CONF = """\
%(modules)s
user root;
worker_processes 1;
worker_rlimit_nofile 20000;
pid %(prefix)s/nginx.pid;
error_log %(prefix)s/error.log notice;
events { worker_connections 16384; accept_mutex off; }
http {
    access_log off;
    default_type text/plain;
    %(temp_paths)s
    client_max_body_size 0;
    keepalive_requests 1000000;
    lua_package_path "%(lua)s/?.lua;;";
    lua_check_client_abort off;
    lua_socket_log_errors off;
    server {
        listen 127.0.0.1:%(port)d backlog=4096;
        location / { content_by_lua_block { require("backend").serve() } }
    }
    server {
        listen 127.0.0.1:%(admin)d;
        location / { content_by_lua_block { require("backend").control() } }
    }
}
"""


class Backend:
    """t/lib/lua/backend.lua in an nginx of one worker, which the signals
    that a test sends to the gateway do not reach."""
    count = 0

    def __init__(self):
        Backend.count += 1
        self.prefix = "%s/backend-%d" % (TMP, Backend.count)
        os.makedirs(self.prefix)
        self.port, self.admin = free_port(), free_port()
        gateway._open.append(self)

    def start(self):
        with open(self.prefix + "/nginx.conf", "w") as f:
            text = BACKEND_CONF % dict(
                modules=modules(), prefix=self.prefix, lua=HERE + "/lua",
                temp_paths=temp_paths(self.prefix), port=self.port,
                admin=self.admin)
            f.write(text if os.geteuid() == 0
                    else text.replace("user root;\n", ""))
        done = subprocess.run(
            [gateway.NGINX, "-e", self.prefix + "/error.log", "-p",
             self.prefix, "-c", self.prefix + "/nginx.conf"],
            capture_output=True, text=True)
        if done.returncode or not soon(self.up, 10):
            raise StartError("backend: " + done.stderr + self.log())
        return self

    def up(self):
        with contextlib.suppress(OSError):
            return self.control("/counts").count(" ") == 2

    def log(self):
        with contextlib.suppress(OSError):
            with open(self.prefix + "/error.log", errors="replace") as f:
                return f.read()
        return ""

    def control(self, path):
        connection = Connection(("127.0.0.1", self.admin))
        try:
            return connection.ask(path=path, close=True, ip=None) \
                .body.decode()
        finally:
            connection.close()

    def counts(self):
        """At work, the most there were, how many came."""
        return tuple(map(int, self.control("/counts").split()))

    at_work = property(lambda self: self.counts()[0])
    peak = property(lambda self: self.counts()[1])
    total = property(lambda self: self.counts()[2])

    def ids(self):
        return self.control("/ids").split()

    def release(self, key, n=1):
        self.control("/release?key=%s&n=%d" % (key, n))

    def reset(self):
        self.control("/reset")

    def close(self):
        if self in gateway._open:
            gateway._open.remove(self)
        try:
            with open(self.prefix + "/nginx.pid") as f:
                master = int(f.read())
        except (OSError, ValueError):
            return
        everyone = [master] + children(master)
        os.kill(master, signal.SIGTERM)
        if not soon(lambda: not any(map(alive, everyone)), 5):
            for pid in everyone:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


class Client:
    """One request of a crowd. Times are of time.monotonic()."""
    __slots__ = ("sock", "text", "data", "sent", "answered", "done", "status",
                 "headers", "error", "tag", "left", "keep")

    def __init__(self, text, tag):
        self.text, self.tag = text, tag
        self.sock = self.sent = self.answered = self.done = None
        self.status, self.headers, self.error = 0, {}, None
        self.data = b""
        # Left before its answer.
        self.left = False
        # Its connection is somebody's who goes on with it.
        self.keep = False

    @property
    def took(self):
        return (self.answered or self.done) - self.sent

    verdict = property(lambda self: self.headers.get("x-verdict", "-"))
    level = property(lambda self: self.headers.get("x-level", "-"))
    worker = property(lambda self: int(self.headers.get("x-worker", 0)))

    @property
    def wait_s(self):
        """What the gateway says of its wait."""
        text = self.headers.get("x-wait-ms", "-")
        return 0.0 if text == "-" else float(text) / 1000

    @property
    def body(self):
        return self.data.partition(b"\r\n\r\n")[2]


def request(path="/b/x", ip="198.51.100.1", user=None, method="GET",
            headers=(), body=b"", close=True, length=None):
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: localhost",
             "X-Forwarded-For: " + ip]
    if close:
        lines.append("Connection: close")
    if user:
        lines.append("X-User: " + user)
    if (body or length) and not any(k == "Transfer-Encoding"
                                    for k, _ in headers):
        lines.append("Content-Length: %d" % (length or len(body)))
    lines += ["%s: %s" % pair for pair in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class Crowd:
    """Clients by the thousand: each has a connection of its own, none a
    thread. Nothing happens but in wait(), play() and pump()."""

    def __init__(self, port):
        self.address = ("127.0.0.1", port)
        self.poll = select.epoll()
        self.by_fd = {}
        self.clients = []

    def send(self, text, tag=None, sock=None, keep=False):
        """A request, over a connection of its own or one that is there; with
        `keep` it ends with its answer, else with its connection."""
        client = Client(text, tag)
        client.keep = keep
        self.clients.append(client)
        client.sent = time.monotonic()
        if sock is None:
            sock = socket.socket()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            code = sock.connect_ex(self.address)
            if code not in (0, errno.EINPROGRESS):
                sock.close()
                raise OSError(code, os.strerror(code))
        else:
            sock.setblocking(False)
        client.sock = sock
        self.by_fd[sock.fileno()] = client
        self.poll.register(sock.fileno(), select.EPOLLOUT | select.EPOLLIN)
        return client

    def many(self, n, make, pace=200):
        """n requests, make(i) each; answers are read meanwhile."""
        clients = []
        for i in range(n):
            clients.append(self.send(make(i)))
            if i % pace == pace - 1:
                self.pump(0)
        self.pump(0)
        return clients

    def pump(self, timeout):
        """Reads and writes what there is, or waits so long for something."""
        for fd, events in self.poll.poll(timeout, 4096):
            client = self.by_fd.get(fd)
            if client is None:
                continue
            if client.text:
                self.write(client, fd)
            if events & ~select.EPOLLOUT and client.done is None:
                self.read(client)

    def write(self, client, fd):
        try:
            n = client.sock.send(client.text)
            client.text = client.text[n:]
        except BlockingIOError:
            return
        except OSError as error:
            # There may be an answer all the same: a refusal before the body.
            client.text = b""
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                return self.finish(client, error)
        if not client.text:
            self.poll.modify(fd, select.EPOLLIN)

    def read(self, client):
        try:
            data = client.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            return self.finish(client, error)
        if not data:
            return self.finish(client, None if client.answered
                               else ConnectionResetError("no answer"))
        client.data += data
        if client.answered is None and b"\r\n\r\n" in client.data:
            client.answered = time.monotonic()
            head = client.data.partition(b"\r\n\r\n")[0].decode("latin-1")
            line, *fields = head.split("\r\n")
            client.status = int(line.split()[1])
            for field in fields:
                key, _, value = field.partition(":")
                client.headers[key.lower()] = value.strip()
        if client.keep and client.answered and len(client.body) >= int(
                client.headers.get("content-length", 0)):
            self.finish(client)

    def finish(self, client, error=None):
        if client.done is not None:
            return
        client.done, client.error = time.monotonic(), error
        fd = client.sock.fileno()
        with contextlib.suppress(OSError):
            self.poll.unregister(fd)
        self.by_fd.pop(fd, None)
        if not client.keep or error:
            client.sock.close()

    def leave(self, client, reset=False):
        """The client hangs up, whatever it has got."""
        if client.done is None:
            client.left = True
            if reset:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                       b"\1\0\0\0\0\0\0\0")
            self.finish(client)

    def wait(self, clients=None, seconds=10.0, until=None, step=0.02):
        """Until all of them are done, or `until` says so, asked that often;
        whether it came to that in time."""
        if clients is not None and until is None:
            def until():
                return all(c.done is not None for c in clients)
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                return False
            self.pump(step)
        return True

    def play(self, plan, after=10.0):
        """Open loop: (at, text, tag) in seconds from now, whatever has become
        of those before. Ends when all have ended; the clients."""
        plan = list(plan)
        heapq.heapify(plan)
        began, clients = time.monotonic(), []
        while plan:
            now = time.monotonic() - began
            while plan and plan[0][0] <= now:
                _, text, tag = heapq.heappop(plan)
                clients.append(self.send(text, tag))
            self.pump(0)
            if plan:
                self.pump(max(0, min(0.01, plan[0][0]
                                     - (time.monotonic() - began))))
        self.wait(clients, after)
        return clients

    def close(self):
        for client in self.clients:
            if client.sock and client.done is None:
                client.sock.close()
        self.by_fd.clear()
        self.poll.close()


def pool(name="b", limit=1, match='{ path = "/b/*" }', capacity=1000,
         max_wait="5s", **more):
    lines = ["[[pools]]", 'name = "%s"' % name, "match = " + match,
             "limit = %s" % limit,
             'queue = { capacity = %d, max_wait = "%s" }'
             % (capacity, max_wait)]
    for key, value in more.items():
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, str) and not value.startswith("{"):
            value = '"%s"' % value
        lines.append("%s = %s" % (key, value))
    return "\n".join(lines) + "\n"


# /b/0/… and so on are of that level, all else of the lowest.
LEVELS = "".join('[[priority.rules]]\nname = "p%d"\nlevel = %d\n'
                 'match = { path = "/b/%d/*" }\n' % (n, n, n)
                 for n in range(3))


def in_front_of(backend, proxy="", server="", http="", **more):
    """What a gateway needs whose /b/ is that backend."""
    return {
        "access": 'require("resty.sluice").access{ '
                  'user = ngx.var.http_x_user }',
        "main": "worker_rlimit_nofile 20000;",
        **more,
        "server": """
            add_header X-Level $sluice_level always;
            add_header X-Wait-Ms $sluice_wait_ms always;
            location /b/ {
                proxy_pass http://127.0.0.1:%d;
                proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade;
                proxy_set_header Connection $connection_upgrade;
                proxy_force_ranges on;
                proxy_read_timeout 120s;
                %s
            }
            %s""" % (backend.port, proxy, server),
        "http": 'lua_check_client_abort on;\n'
                'map $http_upgrade $connection_upgrade '
                '{ default upgrade; "" ""; }\n' + http,
    }


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def times(values):
    """p50 and p99 in milliseconds, for a line of what was measured."""
    if not values:
        return "none"
    return "p50 %.1f ms, p99 %.1f ms of %d" % (
        1000 * percentile(values, 0.5), 1000 * percentile(values, 0.99),
        len(values))


def say(text):
    print("# " + text, flush=True)


class PoolCase(Case):
    """A gateway in front of a backend. Afterwards nothing is in flight,
    nothing waits, and the workers are those that there were, unless the test
    says otherwise."""

    workers_change = False

    def setUp(self):
        super().setUp()
        self.backend = None
        self.quiet, self.pids, self.crowds = [], {}, []

    def gateway(self, toml="", workers=4, server="", http="", proxy="",
                size="16MiB", connections=2048, **more):
        if self.backend is None:
            self.backend = Backend()
            self.opened.append(self.backend)
            self.backend.start()
        gw = super().gateway(toml + LEVELS, workers=workers, size=size,
                             connections=connections, each=True,
                             **in_front_of(self.backend, proxy=proxy,
                                           server=server, http=http, **more))
        self.quiet.append(gw)
        self.pids[gw] = sorted(gw.workers())
        return gw

    def crowd(self, gw):
        crowd = Crowd(gw.port)
        self.crowds.append(crowd)
        return crowd

    @staticmethod
    def pool(gw, name="b"):
        for found in gw.status()["pools"]:
            if found["name"] == name:
                return found
        raise AssertionError("status has no pool " + name)

    def in_flight(self, gw, name="b"):
        return self.pool(gw, name)["in_flight"]

    def waiting(self, gw, name="b"):
        return sum(self.pool(gw, name)["waiting"])

    def at_rest(self, gw, seconds=3.0):
        """Nothing in flight and nothing waits, in status and in metrics."""
        def rest():
            return all(p["in_flight"] == 0 and not any(p["waiting"])
                       for p in gw.status()["pools"])
        self.assertTrue(soon(rest, seconds), gw.status()["pools"])
        for series, value in gw.metrics().items():
            if series.startswith(("sluice_pool_in_flight",
                                  "sluice_queue_waiting")):
                self.assertEqual(value, 0, series)

    def held(self, crowd, n, key, **more):
        """n requests that are at the backend until backend.release(key)."""
        path = more.pop("path", "/b/x")
        before = self.backend.at_work
        mark = "&" if "?" in path else "?"
        clients = crowd.many(n, lambda i: request(
            "%s%shold=%s" % (path, mark, key),
            **{k: v % i if isinstance(v, str) and "%d" in v else v
               for k, v in more.items()}))
        self.assertTrue(crowd.wait(
            until=lambda: self.backend.at_work >= before + n),
            "the backend has %d" % self.backend.at_work)
        return clients

    def queued(self, gw, crowd, n, key="k", name="b", **more):
        """n requests that wait for a slot, at level 0 where not otherwise
        said, in the order in which they came."""
        path = more.pop("path", "/b/0/x")
        more.setdefault("user", "w%d")
        mark = "&" if "?" in path else "?"
        clients = []
        for i in range(n):
            before = self.waiting(gw, name)
            clients.append(crowd.send(request(
                "%s%shold=%s&id=%d" % (path, mark, key, i),
                **{k: v % i if isinstance(v, str) and "%d" in v else v
                   for k, v in more.items()})))
            self.assertTrue(crowd.wait(
                until=lambda: self.waiting(gw, name) > before),
                self.pool(gw, name))
        return clients

    def by_worker(self, gw, n=1):
        """{pid: n kept-alive connections that this worker has}."""
        found = {pid: [] for pid in gw.workers()}
        for _ in range(4000):
            if all(len(some) >= n for some in found.values()):
                return found
            connection = Connection(gw.each)
            pid = int(connection.ask(path="/free").headers["x-worker"])
            if len(found.get(pid, [0] * n)) < n:
                found[pid].append(connection)
            else:
                connection.close()
        raise AssertionError({pid: len(some) for pid, some in found.items()})

    def tearDown(self):
        for crowd in self.crowds:
            crowd.close()
        try:
            # A test that has failed says why by itself.
            if getattr(self._outcome, "success", True):
                for gw in self.quiet:
                    if gw.master() and alive(gw.master()):
                        self.at_rest(gw)
                        if not self.workers_change:
                            self.assertEqual(sorted(gw.workers()),
                                             self.pids[gw])
        finally:
            super().tearDown()
