"""What the harnesses share: a gateway (an nginx of its own, with its own
prefix, ports and region of shared memory), a Redis, a plain HTTP client, and
a TAP runner. Python's standard library only.

Environment: SLUICE_LUA, SLUICE_LIB, SLUICE_BIN as for the suites;
SLUICE_SOAK=1 for the long versions.
"""
import atexit
import contextlib
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
LUA = os.path.abspath(os.environ.get("SLUICE_LUA", ROOT + "/lua"))
LIB = os.path.abspath(os.environ.get("SLUICE_LIB", ROOT + "/target/fast"))
BIN = os.path.abspath(os.environ.get("SLUICE_BIN", LIB + "/sluice"))
# Absolute: for an upgrade nginx runs itself again by the name it was given.
NGINX = shutil.which(os.environ.get("TEST_NGINX_BINARY", "nginx")) or "nginx"
SOAK = os.environ.get("SLUICE_SOAK", "") not in ("", "0")

# Ten thousand clients need as many files; 1024 is what many a system begins with.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if _soft < 20000 <= _hard:
    resource.setrlimit(resource.RLIMIT_NOFILE, (20000, _hard))

TMP = tempfile.mkdtemp(prefix="sluice-p-")
os.chmod(TMP, 0o755)
SHM = "/dev/shm/sluice-p-%d-" % os.getpid()
_open = []


def _leave_nothing():
    for thing in reversed(list(_open)):
        with contextlib.suppress(Exception):
            thing.close()
    for path in glob.glob(SHM + "*"):
        with contextlib.suppress(OSError):
            os.unlink(path)
    shutil.rmtree(TMP, ignore_errors=True)


atexit.register(_leave_nothing)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


_held = []


def free_port():
    """Below the range from which the kernel takes the ports of clients. The
    UDP port of the same number is held as long as we run: it keeps the other
    test processes of this machine from the number."""
    while True:
        port = random.randrange(10000, 32000)
        held = socket.socket(type=socket.SOCK_DGRAM)
        try:
            held.bind(("127.0.0.1", port))
            with socket.socket() as s:
                s.bind(("0.0.0.0", port))
        except OSError:
            held.close()
            continue
        _held.append(held)
        return port


def roomy(name, mib):
    """Where a region of so many MiB fits: in /dev/shm, or with the test's own
    files where that is smaller (a container's has 64 MB)."""
    if shutil.disk_usage("/dev/shm").free < (mib + 16) << 20:
        print("# no room for %d MiB in /dev/shm: the region is in %s"
              % (mib, TMP))
        return TMP + "/" + name
    return SHM + name


def modules():
    """`load_module` lines where nginx does not have Lua built in."""
    text = subprocess.run([NGINX, "-V"], capture_output=True, text=True).stderr
    folder = "/usr/lib/nginx/modules"
    if re.search("openresty|lua-nginx-module|ngx_lua", text) or \
            not os.path.exists(folder + "/ngx_http_lua_module.so"):
        return ""
    return "load_module %s/ndk_http_module.so;\n" \
           "load_module %s/ngx_http_lua_module.so;\n" % (folder, folder)


def temp_paths(prefix):
    """An nginx of a test writes into its own folder only."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return " ".join("%s_temp_path %s/%s;" % (kind, prefix, kind)
                    for kind in kinds)


def soon(condition, seconds=5.0, step=0.05):
    """Asks until it is true; what it last said."""
    until = time.monotonic() + seconds
    while True:
        said = condition()
        if said or time.monotonic() > until:
            return said
        time.sleep(step)


def state(pid):
    """As ps shows it; X: there is none."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def alive(pid):
    """Zombies have ended."""
    return state(pid) not in "ZX"


def children(pid):
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError):
            with open(path) as f:
                text = f.read()
            state, parent = text.rsplit(")", 1)[1].split()[:2]
            if int(parent) == pid and state not in "ZX":
                found.append(int(text.split()[0]))
    return found


def cpu_s(pid):
    """User and system time of a process so far."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kb(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


# --- HTTP -------------------------------------------------------------------

class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    verdict = property(lambda self: self.headers.get("x-verdict", "-"))
    rule = property(lambda self: self.headers.get("x-rule", "-"))
    client = property(lambda self: self.headers.get("x-client", "-"))

    @property
    def left(self):
        found = re.search(r";r=(\d+);", self.headers.get("ratelimit", ""))
        return int(found.group(1)) if found else None


class Connection:
    """One connection, kept alive."""

    def __init__(self, address, timeout=10):
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(address)
        else:
            self.sock = socket.create_connection(address, timeout)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb")

    def send(self, method="GET", path="/", ip="198.51.100.1", headers=(),
             body=None, host="localhost", close=False):
        lines = ["%s %s HTTP/1.1" % (method, path), "Host: " + host]
        if ip:
            lines.append("X-Forwarded-For: " + ip)
        if close:
            lines.append("Connection: close")
        lines += ["%s: %s" % pair for pair in headers]
        if body is not None:
            lines.append("Content-Length: %d" % len(body))
        text = "\r\n".join(lines) + "\r\n\r\n"
        self.sock.sendall(text.encode("latin-1") + (body or b""))

    def answer(self, method="GET"):
        line = self.file.readline()
        if not line:
            raise ConnectionResetError("closed without an answer")
        status = int(line.split()[1])
        headers = {}
        while True:
            line = self.file.readline()
            if line in (b"\r\n", b""):
                break
            key, _, value = line.decode("latin-1").partition(":")
            key, value = key.lower(), value.strip()
            headers[key] = headers[key] + ", " + value if key in headers \
                else value
        if method == "HEAD" or status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                size = int(self.file.readline(), 16)
                body += self.file.read(size)
                self.file.readline()
                if not size:
                    break
        elif "content-length" in headers:
            body = self.file.read(int(headers["content-length"]))
        else:
            body = self.file.read()
        return Answer(status, headers, body)

    def ask(self, method="GET", path="/", **more):
        self.send(method, path, **more)
        return self.answer(method)

    def close(self):
        with contextlib.suppress(OSError):
            self.file.close()
            self.sock.close()


STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d\d\d) ")


def flood(port, requests, total, connections=16, depth=20):
    """Sends `total` requests in pipelined batches over several connections;
    the texts of `requests` take turns. Returns {status: count} and the
    seconds from the first byte to the last answer."""
    counts, lock = {}, threading.Lock()
    barrier = threading.Barrier(connections + 1)

    def one(number):
        mine = {}
        left = total // connections + (number < total % connections)
        # Each connection goes on where the one before it ends.
        at = number * (total // connections) + min(number,
                                                   total % connections)
        sock = socket.create_connection(("127.0.0.1", port), 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        barrier.wait()
        while left:
            n = min(depth, left)
            batch = b"".join(requests[(at + i) % len(requests)]
                             for i in range(n))
            at += n
            left -= n
            sock.sendall(batch)
            seen, tail = 0, b""
            while seen < n:
                data = sock.recv(262144)
                if not data:
                    raise ConnectionResetError("closed under load")
                tail += data
                end = 0
                for found in STATUS_LINE.finditer(tail):
                    status, end = int(found.group(1)), found.end()
                    mine[status] = mine.get(status, 0) + 1
                    seen += 1
                # What is left may hold the beginning of a status line.
                tail = tail[max(end, len(tail) - 12):]
        sock.close()
        with lock:
            for status, n in mine.items():
                counts[status] = counts.get(status, 0) + n

    errors = []

    def guarded(number):
        try:
            one(number)
        except Exception as error:  # noqa: BLE001 (told by the caller)
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=guarded, args=(i,))
               for i in range(connections)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    start = time.monotonic()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return counts, time.monotonic() - start


def request_bytes(path="/", ip="198.51.100.1", extra=""):
    return ("GET %s HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: %s\r\n"
            "%s\r\n" % (path, ip, extra)).encode("latin-1")


class Load(threading.Thread):
    """Steady requests from one thread over kept-alive connections, until
    stopped; what came back is counted, and how long the slowest took."""

    def __init__(self, gateway, path="/load", ips=("198.51.100.250",),
                 per_second=200, fresh=False):
        super().__init__(daemon=True)
        self.gateway, self.path, self.ips = gateway, path, ips
        self.pause = 1.0 / per_second
        self.fresh = fresh
        self.counts, self.resets, self.slowest = {}, 0, 0.0
        self.running = True

    def run(self):
        connection, i = None, 0
        due = time.monotonic()
        while self.running:
            due += self.pause
            i += 1
            began = time.monotonic()
            try:
                if connection is None:
                    connection = Connection(self.gateway.address)
                answer = connection.ask(path=self.path,
                                        ip=self.ips[i % len(self.ips)])
                self.counts[answer.status] = \
                    self.counts.get(answer.status, 0) + 1
                if self.fresh or answer.headers.get("connection") == "close":
                    connection.close()
                    connection = None
            except (OSError, ValueError, IndexError):
                self.resets += 1
                if connection:
                    connection.close()
                connection = None
                time.sleep(0.01)
            took = time.monotonic() - began
            self.slowest = max(self.slowest, took)
            ahead = due - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            else:
                due = time.monotonic()
        if connection:
            connection.close()

    def stop(self):
        self.running = False
        self.join()
        return self.counts


# --- nginx ------------------------------------------------------------------

NGINX_CONF = """\
%(modules)s
env LUA_PATH;
env LUA_CPATH;
%(main)s
%(user)s
daemon %(daemon)s;
master_process %(master)s;
worker_processes %(workers)d;
pid %(prefix)s/nginx.pid;
error_log %(prefix)s/error.log notice;
events {
    worker_connections %(connections)d;
    accept_mutex off;
}
http {
    access_log off;
    default_type text/plain;
    %(temp_paths)s
    lua_package_path "%(lua)s/?.lua;;";
    lua_package_cpath "%(lib)s/?.so;;";
    keepalive_requests 1000000;
    include %(include)s;
    init_by_lua_block {
        %(before_setup)s
        require("resty.sluice").setup("%(config)s")
        %(after_setup)s
    }
    init_worker_by_lua_block {
        %(before_start)s
        require("resty.sluice").start()
        %(after_start)s
    }
    %(http)s
    server {
        listen 127.0.0.1:%(port)d;
        %(listen)s
        add_header X-Verdict $sluice_verdict always;
        add_header X-Rule $sluice_rule always;
        add_header X-Client $sluice_client always;
        add_header X-Worker $pid always;
        access_by_lua_block { %(access)s }
        log_by_lua_block { %(log)s }
        %(server)s
        location / {
            content_by_lua_block {
                ngx.req.discard_body()
                ngx.print("ok\\n")
            }
        }
    }
    server {
        listen 127.0.0.1:%(admin)d;
        location = /metrics {
            content_by_lua_block { require("resty.sluice").metrics() }
        }
        location = /status {
            content_by_lua_block { require("resty.sluice").status() }
        }
        location = /call {
            content_by_lua_block {
                ngx.req.read_body()
                local call = assert(loadstring(ngx.req.get_body_data()))
                ngx.print(tostring(call(require("resty.sluice"))))
            }
        }
        location = /pid { content_by_lua_block { ngx.print(ngx.worker.pid()) } }
    }
}
"""


class StartError(Exception):
    pass


class Gateway:
    count = 0

    def __init__(self, toml="", workers=4, shm=None, size="8MiB", each=False,
                 **more):
        Gateway.count += 1
        self.prefix = "%s/gateway-%d" % (TMP, Gateway.count)
        os.makedirs(self.prefix)
        os.chmod(self.prefix, 0o777)
        self.shm = shm or SHM + str(Gateway.count)
        self.port, self.admin = free_port(), free_port()
        self.address = ("127.0.0.1", self.port)
        self.size, self.workers_wanted = size, workers
        self.values = dict(
            modules=modules(), temp_paths=temp_paths(self.prefix),
            main="", daemon="on", master="on",
            workers=workers, prefix=self.prefix, connections=1024, lua=LUA,
            lib=LIB, include=ROOT + "/openresty-conf/sluice.conf",
            config=self.prefix + "/sluice.toml", port=self.port,
            admin=self.admin, http="", server="", listen="",
            user="user root;" if os.geteuid() == 0 else "",
            access='require("resty.sluice").access()',
            log='require("resty.sluice").log()', before_setup="",
            after_setup="", before_start="", after_start="")
        self.values.update(more)
        if each:
            # A socket of its own for each worker: of one socket for all,
            # nginx before 1.21.6 gives nearly every connection to the same.
            self.each = ("127.0.0.1", free_port())
            self.values["listen"] += "\n        listen %s:%d reuseport;" \
                % self.each
        self.child = None
        # Its log is not read for what must not be there: it says why.
        self.refused = False
        self.configure(toml)
        _open.append(self)

    def configure(self, toml):
        self.toml = toml
        if not re.search(r"^\[shm\]", toml, re.M):
            toml += '\n[shm]\npath = "%s"\nsize = "%s"\n' % (self.shm,
                                                            self.size)
        if not re.search(r"^\[client\]", toml, re.M):
            toml += '\n[client]\ntrusted_proxies = ["127.0.0.1"]\n'
        with open(self.prefix + "/sluice.toml", "w") as f:
            f.write(toml)

    def write(self):
        with open(self.prefix + "/nginx.conf", "w") as f:
            f.write(NGINX_CONF % self.values)

    def command(self):
        return [NGINX, "-e", self.prefix + "/error.log", "-p", self.prefix,
                "-c", self.prefix + "/nginx.conf"]

    def start(self, as_user=None):
        self.write()
        if self.values["daemon"] == "off":
            self.child = subprocess.Popen(self.command(), user=as_user,
                                          stderr=subprocess.DEVNULL)
        else:
            with open(self.prefix + "/stderr", "wb+") as err:
                code = subprocess.run(self.command(), stderr=err).returncode
                err.seek(0)
                said = err.read().decode("utf-8", "replace")
            if code:
                self.refused = True
                raise StartError(said + self.log())
        if not soon(self.up, 10):
            raise StartError("does not answer:\n" + self.log()[-3000:])
        return self

    def up(self):
        try:
            return self.master() and self.admin_get("/pid").status == 200 \
                and len(self.workers()) >= self.workers_wanted
        except OSError:
            return False

    def master(self):
        try:
            with open(self.prefix + "/nginx.pid") as f:
                return int(f.read())
        except (OSError, ValueError):
            return 0

    def workers(self):
        """Pids of the workers that are not leaving."""
        if self.values["master"] == "off":
            return [self.master()]
        found = []
        for pid in children(self.master()):
            with contextlib.suppress(OSError):
                with open("/proc/%d/cmdline" % pid) as f:
                    if f.read().startswith("nginx: worker process") \
                            and not self.leaving(pid):
                        found.append(pid)
        return found

    @staticmethod
    def leaving(pid):
        with contextlib.suppress(OSError):
            with open("/proc/%d/cmdline" % pid) as f:
                return "shutting down" in f.read()
        return False

    def leavers(self):
        return [pid for pid in children(self.master()) if self.leaving(pid)]

    def idle(self, seconds=1.0):
        """The largest share of a core that a worker takes while nothing is
        asked of it."""
        before = {pid: cpu_s(pid) for pid in self.workers()}
        time.sleep(seconds)
        return max((cpu_s(pid) - was) / seconds
                   for pid, was in before.items())

    def hup(self, wait=True):
        """A reload; with `wait`, until the workers are all new."""
        old = set(self.workers())
        os.kill(self.master(), signal.SIGHUP)
        if wait:
            new = soon(lambda: len(set(self.workers()) - old)
                       >= self.workers_wanted
                       and not old & set(self.workers()), 15)
            if not new:
                raise AssertionError("no new workers after HUP:\n"
                                     + self.log()[-3000:])

    def stop(self, how=signal.SIGQUIT, seconds=15):
        master = self.master()
        if not master or not alive(master):
            return True
        everyone = [master] + children(master)
        os.kill(master, how)
        gone = soon(lambda: not any(alive(pid) for pid in everyone), seconds)
        if self.child:
            with contextlib.suppress(Exception):
                self.child.wait(5)
        return gone

    def close(self):
        if self in _open:
            _open.remove(self)
        master = self.master()
        if not self.stop(signal.SIGTERM, 5):
            for pid in [master] + children(master):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if self.child:
                self.child.wait()
        for path in glob.glob(self.shm + "*"):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def log(self):
        try:
            with open(self.prefix + "/error.log", errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    # Requests.

    def ask(self, method="GET", path="/", at=None, **more):
        connection = Connection(at or self.address)
        try:
            return connection.ask(method, path, close=True, **more)
        finally:
            connection.close()

    def admin_get(self, path, method="GET", body=None):
        connection = Connection(("127.0.0.1", self.admin))
        try:
            return connection.ask(method, path, close=True, ip=None, body=body)
        finally:
            connection.close()

    def call(self, lua):
        """Runs Lua in a worker; `sluice` is the module."""
        text = "local sluice = ... ; " + lua
        return self.admin_get("/call", "POST",
                              text.encode()).body.decode("latin-1")

    def metrics(self):
        found = {}
        text = self.admin_get("/metrics").body.decode()
        for line in text.splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                found[series] = float(value)
        return found

    def requests_total(self):
        return {series.split('"')[1]: int(value)
                for series, value in self.metrics().items()
                if series.startswith("sluice_requests_total")}

    def status(self):
        return json.loads(self.admin_get("/status").body)


# What must never be in an error log, whatever the test does.
BAD_LOG = re.compile(
    r"exited on signal|stack traceback|panicked|attempt to |bad callback"
    r"|\[alert\]|\[emerg\]|API disabled|Assertion")


# --- Redis ------------------------------------------------------------------

class RedisError(Exception):
    pass


class Redis:
    count = 0

    def __init__(self, *more):
        Redis.count += 1
        self.dir = "%s/redis-%d" % (TMP, Redis.count)
        os.makedirs(self.dir)
        self.port = free_port()
        self.more = more
        self.process = self.sock = None
        _open.append(self)

    url = property(lambda self: "redis://127.0.0.1:%d/0" % self.port)

    def start(self):
        with open(self.dir + "/log", "ab") as log:
            self.process = subprocess.Popen(
                ["redis-server", "--port", str(self.port),
                 "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                 "--dir", self.dir, "--enable-debug-command", "yes",
                 *self.more], stdout=log, stderr=log)
        if not soon(self.answers, 10):
            raise StartError("redis-server does not answer")
        return self

    def answers(self):
        try:
            return self("PING") == "PONG"
        except (OSError, RedisError):
            return False

    def kill(self):
        self.hang_up()
        if self.process:
            with contextlib.suppress(OSError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        if self in _open:
            _open.remove(self)
        self.kill()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def hang_up(self):
        if self.sock:
            self.sock.close()
        self.sock = None

    def __call__(self, *words):
        try:
            if self.sock is None:
                self.sock = socket.create_connection(
                    ("127.0.0.1", self.port), 10)
                self.file = self.sock.makefile("rb")
            self.sock.sendall(self.pack(words))
            return self.read()
        except OSError:
            self.hang_up()
            raise

    @staticmethod
    def pack(words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        return b"".join(parts)

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionResetError("redis closed the connection")
        kind, rest = line[:1], line[1:-2].decode("latin-1")
        if kind == b"$":
            if rest == "-1":
                return None
            data = self.file.read(int(rest))
            self.file.read(2)
            return data.decode("latin-1")
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b"-":
            raise RedisError(rest)
        return rest

    def many(self, commands):
        """Pipelined; the answers are thrown away."""
        self("PING")
        commands = list(commands)
        for i in range(0, len(commands), 1000):
            part = commands[i:i + 1000]
            self.sock.sendall(b"".join(self.pack(words) for words in part))
            for _ in part:
                self.read()

    def info(self, section, field):
        return re.search(r"(?m)^%s:(.*?)\r?$" % re.escape(field),
                         self("INFO", section)).group(1)

    def buckets(self, prefix="sluice"):
        return [key for key in self("KEYS", prefix + ":b:*")]


def redis_toml(redis, **more):
    """[store] for buckets in that Redis, with time enough for a slow
    machine."""
    fields = dict(backend="redis", url=redis.url, timeout="500ms")
    fields.update(more)
    return "[store]\n" + "".join('%s = "%s"\n' % pair
                                 for pair in fields.items())


def rule(name="r", rate="1/d", capacity=5, **more):
    lines = ["[[rules]]", 'name = "%s"' % name, 'rate = "%s"' % rate,
             "capacity = %d" % capacity]
    lines += ["%s = %s" % (key, json.dumps(value)
                           if not isinstance(value, str)
                           or not value.startswith("{") else value)
              for key, value in more.items()]
    return "\n".join(lines) + "\n"


# --- TAP --------------------------------------------------------------------

class Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.n = 0

    def line(self, good, test, note="", detail=""):
        self.n += 1
        took = time.monotonic() - self.began
        print("%s %d - %s (%.1f s)%s" % ("ok" if good else "not ok", self.n,
                                         test.id().replace("__main__.", ""),
                                         took, note))
        for text in detail.rstrip().splitlines():
            print("# " + text)
        sys.stdout.flush()

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def addSuccess(self, test):
        self.line(True, test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(True, test, " # SKIP " + reason)

    def addError(self, test, err):
        super().addError(test, err)
        self.line(False, test, detail="".join(
            traceback.format_exception(*err)))

    addFailure = addError


def main():
    """Runs the file's tests, those named on the command line or all."""
    loader = unittest.TestLoader()
    module = sys.modules["__main__"]
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    suite = loader.loadTestsFromNames(names, module) if names \
        else loader.loadTestsFromModule(module)
    result = Tap()
    suite.run(result)
    print("1..%d" % result.n)
    sys.exit(0 if result.wasSuccessful() and result.n else 1)


class Case(unittest.TestCase):
    """A test that closes what it opened and reads every error log."""

    # Lines of BAD_LOG that a test brings about on purpose.
    expected_in_log = None

    def setUp(self):
        self.opened = []

    def tearDown(self):
        for thing in self.opened:
            if isinstance(thing, Gateway) and not thing.refused:
                for line in thing.log().splitlines():
                    if BAD_LOG.search(line) and not (
                            self.expected_in_log
                            and re.search(self.expected_in_log, line)):
                        self.close_all()
                        self.fail("in the error log: " + line)
        self.close_all()

    def close_all(self):
        for thing in reversed(self.opened):
            thing.close()
        self.opened = []

    def gateway(self, *args, **more):
        gateway = Gateway(*args, **more)
        self.opened.append(gateway)
        return gateway.start()

    def idle_gateway(self, *args, **more):
        gateway = Gateway(*args, **more)
        self.opened.append(gateway)
        return gateway

    def redis(self, *more):
        redis = Redis(*more)
        self.opened.append(redis)
        return redis.start()
