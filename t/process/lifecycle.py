#!/usr/bin/env python3
"""A gateway's life with real signals: reloads, killed and stopped workers,
stop and start, a binary upgrade, and what a region of shared memory may meet
when it is opened."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import (LIB, LUA, SHM, SOAK, TMP, Case,  # noqa: E402
                     Connection, Load, StartError, alive, children, main, rss_kb, rule, soon)

DAY = rule("day", "1/d", 5) + rule("site", "1/d", 300, key=[],
                                   match='{ path = "/site" }')


class Reloads(Case):
    expected_in_log = r"exited on signal 9"

    def test_hups_and_killed_workers_lose_nothing(self):
        """20 HUPs and 100 `kill -9` under load: no limit, no ban, no worker
        is lost, no token is minted, no counter falls."""
        gw = self.gateway(DAY + '[lists]\nblocklist = ["203.0.113.0/24"]\n')
        gw.call('return sluice.ban("192.0.2.7", 86400)')
        drained = ["198.51.100.%d" % i for i in range(1, 21)]
        for ip in drained:
            said = [gw.ask(ip=ip).status for _ in range(6)]
            self.assertEqual(said, [200] * 5 + [429])

        loads = [Load(gw, ips=drained, per_second=300),
                 Load(gw, ips=["192.0.2.7", "203.0.113.5"], per_second=100),
                 Load(gw, path="/site", per_second=100,
                      ips=["10.7.%d.1" % i for i in range(250)]),
                 Load(gw, ips=["10.9.%d.%d" % (i, j) for i in range(40)
                               for j in range(50)], per_second=200,
                      fresh=True)]
        for load in loads:
            load.start()

        fell, last = [], {}
        killed = 0

        def scrape():
            try:
                now = gw.metrics()
            except (OSError, ValueError):
                return  # that worker was killed under it
            for series, value in now.items():
                if "_total" in series or "_bucket" in series \
                        or "_count" in series:
                    if value < last.get(series, 0):
                        fell.append((series, last[series], value))
                    last[series] = value

        for i in range(20):
            gw.hup()
            scrape()
        import random
        chance = random.Random(7)
        last_killed = None
        while killed < 100:
            # One that dies slowly must not be counted twice.
            workers = [pid for pid in gw.workers() if pid != last_killed]
            if len(workers) < 4:
                time.sleep(0.01)
                continue
            last_killed = chance.choice(workers)
            os.kill(last_killed, signal.SIGKILL)
            killed += 1
            time.sleep(0.04)
            if killed % 5 == 0:
                scrape()
        self.assertTrue(soon(lambda: len(gw.workers()) == 4))
        scrape()
        for load in loads:
            load.stop()

        self.assertEqual(fell, [])
        # Drained stays drained; banned and blocked stay so.
        self.assertEqual(set(loads[0].counts), {429})
        self.assertEqual(set(loads[1].counts), {403})
        self.assertGreater(loads[0].counts[429], 500)
        # One bucket for all: its tokens were handed out once. Answers that
        # a killed worker still owed are the only ones missing.
        passed = loads[2].counts.get(200, 0)
        self.assertLessEqual(passed, 300)
        self.assertLessEqual(300 - passed, loads[2].resets)
        self.assertLessEqual(set(loads[3].counts), {200, 429})
        for load in loads:
            self.assertLess(load.slowest, 5)
        log = gw.log()
        deaths = len(re.findall("exited on signal 9", log))
        self.assertEqual(deaths, 100)
        self.assertEqual(len(gw.status()["workers"]), 4)
        self.assertLess(gw.idle(), 0.5)
        # And a newcomer has exactly his five.
        said = [gw.ask(ip="198.51.100.99").status for _ in range(7)]
        self.assertEqual(said, [200] * 5 + [429] * 2)

    def test_a_bad_file_refuses_the_reload(self):
        """The old workers go on under the old configuration."""
        self.expected_in_log = "stack traceback"
        gw = self.gateway(DAY, workers=2)
        workers = sorted(gw.workers())
        gw.configure(DAY + "[nonsense]\nx = 1\n")
        os.kill(gw.master(), signal.SIGHUP)
        self.assertTrue(soon(lambda: "nonsense" in gw.log()))
        time.sleep(0.5)
        self.assertEqual(sorted(gw.workers()), workers)
        self.assertEqual(gw.ask().status, 200)
        gw.configure(rule("day", "1/d", 7))
        gw.hup()
        self.assertEqual(
            gw.ask(ip="198.51.100.2").headers["ratelimit-policy"],
            '"day";q=7;w=604800')

    def test_a_changed_file_keeps_what_was_spent(self):
        """B82: 10/h drained and raised to 20/h has 10; lowered at once."""
        gw = self.gateway(rule("up", "10/h", 10)
                          + rule("down", "1/d", 100, match='{path="/d"}'))
        for _ in range(10):
            gw.ask()
        for _ in range(3):
            gw.ask(path="/d", ip="198.51.100.2")
        gw.configure(rule("up", "20/h", 20)
                     + rule("down", "1/d", 2, match='{path="/d"}'))
        gw.hup()
        said = [gw.ask().status for _ in range(12)]
        self.assertEqual(said, [200] * 10 + [429] * 2)
        self.assertEqual(gw.ask(path="/d", ip="198.51.100.2").status, 429)

    def test_more_and_fewer_workers(self):
        redis = self.redis()
        gw = self.gateway('[store]\nurl = "%s"\n' % redis.url + DAY)
        for _ in range(5):
            gw.ask()
        for n, count in enumerate((1, 7, 2)):
            gw.values["workers"] = gw.workers_wanted = count
            gw.write()
            gw.hup()
            self.assertTrue(soon(lambda: not gw.leavers()))
            self.assertTrue(soon(
                lambda: len(gw.status()["workers"]) == count))
            self.assertEqual(gw.ask().status, 429)
            ip = "203.0.113.%d" % n
            redis("SADD", "sluice:blocklist", ip)
            self.assertTrue(soon(lambda: gw.ask(ip=ip).status == 403, 3))

    def test_b86_the_same_winner_after_every_reload(self):
        gw = self.gateway(rule("b", "1/d", 5) + rule("a", "1/d", 5), workers=2)
        for _ in range(3):
            self.assertEqual(
                gw.ask(ip="198.51.100.9").headers["ratelimit-policy"],
                '"a";q=5;w=432000')
            gw.hup()

    def test_b91_old_workers_leave(self):
        """HUPs with idle keep-alive clients, with Redis and without it: soon
        nobody is shutting down, and threads, descriptors, Redis clients and
        the master's memory are as before."""
        redis = self.redis()
        gw = self.gateway('[store]\nbackend = "redis"\nurl = "%s"\n' % redis.url
                          + DAY, workers=2)

        def shape():
            threads = sorted(len(os.listdir("/proc/%d/task" % pid))
                             for pid in gw.workers())
            files = sorted(len(os.listdir("/proc/%d/fd" % pid))
                           for pid in gw.workers())
            return threads, files

        gw.ask()
        for _ in range(3):
            gw.hup()
        soon(lambda: not gw.leavers(), 10)
        time.sleep(1.5)
        before, memory = shape(), rss_kb(gw.master())
        clients = int(redis.info("clients", "connected_clients"))
        for down in (False, True):
            if down:
                redis.kill()
            idle = [Connection(gw.address) for _ in range(8)]
            for connection in idle:
                connection.ask()
            for _ in range(10):
                gw.hup()
                time.sleep(2 if SOAK else 0.2)
            self.assertTrue(soon(lambda: not gw.leavers(), 10),
                            "still shutting down")
            for connection in idle:
                connection.close()
            if not down:
                time.sleep(1.5)
                now = int(redis.info("clients", "connected_clients"))
                self.assertLessEqual(now, clients + 1)
                threads, files = shape()
                self.assertEqual(threads, before[0])
                for was, is_now in zip(before[1], files):
                    self.assertLessEqual(is_now, was + 2)
        self.assertLess(rss_kb(gw.master()), memory * 1.05 + 1024)

    def test_quit_while_requests_wait_for_redis(self):
        """Every waiting request is answered, and the worker then leaves."""
        redis = self.redis()
        gw = self.gateway('[store]\nbackend = "redis"\nurl = "%s"\n'
                          'timeout = "1s"\n' % redis.url + DAY, workers=1)
        gw.ask()
        redis.freeze()
        waiting = [Connection(gw.address) for _ in range(10)]
        for i, connection in enumerate(waiting):
            connection.send(ip="203.0.113.%d" % i)
        time.sleep(0.2)
        old = gw.workers()
        os.kill(gw.master(), signal.SIGHUP)
        statuses = [connection.answer().status for connection in waiting]
        redis.thaw()
        self.assertEqual(statuses, [200] * 10)
        self.assertTrue(soon(lambda: not any(alive(p) for p in old), 6))


class Restarts(Case):
    def test_stop_and_start_keep_state(self):
        gw = self.gateway(DAY, workers=2)
        for _ in range(5):
            gw.ask()
        gw.call('return sluice.ban("192.0.2.7", 86400)')
        gw.call('return sluice.ban("192.0.2.8", 1)')
        before = gw.requests_total()
        self.assertTrue(gw.stop())
        # The shorter ban has ended, a started second counted whole.
        time.sleep(2.2)
        gw.start()
        self.assertEqual(gw.ask().status, 429)
        self.assertEqual(gw.ask(ip="192.0.2.7").status, 403)
        self.assertEqual(gw.ask(ip="192.0.2.8").status, 200)
        after = gw.requests_total()
        self.assertGreaterEqual(after["pass"], before["pass"])
        self.assertGreaterEqual(after["limited"], 1)

    def test_a_killed_gateway_keeps_state(self):
        gw = self.gateway(DAY, workers=2)
        for _ in range(5):
            gw.ask()
        gw.call('return sluice.ban("192.0.2.7", 86400)')
        everyone = [gw.master()] + children(gw.master())
        for pid in everyone:
            os.kill(pid, signal.SIGKILL)
        self.assertTrue(soon(lambda: not any(map(alive, everyone))))
        gw.start()
        self.assertEqual(gw.ask().status, 429)
        self.assertEqual(gw.ask(ip="192.0.2.7").status, 403)

    def test_usr2_upgrade(self):
        """A new master beside the old one: one state, nothing lost when
        either goes."""
        gw = self.gateway(DAY, workers=2)
        for _ in range(3):
            gw.ask()
        gw.call('return sluice.ban("192.0.2.7", 86400)')
        old = gw.master()
        load = Load(gw, ips=["203.0.113.1"], per_second=100, fresh=True)
        load.start()
        os.kill(old, signal.SIGUSR2)
        self.assertTrue(soon(lambda: os.path.exists(gw.prefix
                                                    + "/nginx.pid.oldbin")
                             and gw.master() not in (0, old)
                             and len(gw.workers()) == 2, 10),
                        gw.log()[-3000:])
        # Both generations answer, over one state.
        said = [gw.ask(ip="198.51.100.50").status for _ in range(12)]
        self.assertEqual(said, [200] * 5 + [429] * 7)
        os.kill(old, signal.SIGQUIT)
        self.assertTrue(soon(lambda: not alive(old), 10))
        load.stop()
        self.assertEqual(load.resets, 0)
        self.assertLessEqual(set(load.counts), {200, 429})
        self.assertLessEqual(load.counts[200], 5)
        said = [gw.ask().status for _ in range(4)]
        self.assertEqual(said, [200] * 2 + [429] * 2)
        self.assertEqual(gw.ask(ip="192.0.2.7").status, 403)
        self.assertEqual(len(gw.status()["workers"]), 2)

    def test_a_stopped_worker_holds_nobody_up(self):
        """B94: SIGSTOP for 2 s; the others answer at once. (Over connections
        that they hold: who is woken for a new one is the kernel's choice.)"""
        gw = self.gateway(DAY)
        for _ in range(5):
            gw.ask()
        held = {}
        for _ in range(200):
            connection = Connection(gw.address)
            worker = int(connection.ask(ip="10.0.0.1").headers["x-worker"])
            if worker in held:
                connection.close()
            held.setdefault(worker, connection)
            if len(held) == 4:
                break
        victim = next(iter(held))
        others = [held[worker] for worker in held if worker != victim]
        self.assertTrue(others)
        os.kill(victim, signal.SIGSTOP)
        try:
            until = time.monotonic() + 2
            answered, slowest = 0, 0.0
            while time.monotonic() < until:
                began = time.monotonic()
                connection = others[answered % len(others)]
                self.assertEqual(connection.ask().status, 429)
                slowest = max(slowest, time.monotonic() - began)
                answered += 1
        finally:
            os.kill(victim, signal.SIGCONT)
        self.assertGreater(answered, 20)
        self.assertLess(slowest, 1)
        self.assertTrue(alive(victim))


class Regions(Case):
    def refused(self, gw, *patterns):
        with self.assertRaises(StartError) as caught:
            gw.start()
        for pattern in patterns:
            self.assertRegex(str(caught.exception), pattern)
        self.assertEqual(gw.master() and alive(gw.master()) or False, False)

    def test_no_room(self):
        """The space is reserved at the start, where its lack is an error
        with path and size."""
        if shutil.disk_usage("/dev/shm").total > 60 << 30:
            self.skipTest("/dev/shm is larger than any region may be")
        gw = self.idle_gateway(DAY, size="60GiB")
        self.refused(gw, re.escape(gw.shm), r"60(\.0)? ?GiB")

    def test_a_full_filesystem(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small filesystem needs root")
        mount = TMP + "/small"
        os.makedirs(mount)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m",
                               "tmpfs", mount], capture_output=True, text=True)
        if done.returncode:
            self.skipTest("no mount here: " + done.stderr.strip())
        try:
            gw = self.idle_gateway(DAY, shm=mount + "/sluice", size="16MiB")
            self.refused(gw, re.escape(mount + "/sluice"), r"16(\.0)? ?MiB|16777216")
            # What was begun is not left behind.
            self.assertLess(sum(os.path.getsize(mount + "/" + name)
                                for name in os.listdir(mount)), 4096)
        finally:
            subprocess.run(["umount", "-l", mount])

    def test_in_use_by_another_gateway(self):
        first = self.gateway(DAY, workers=1)
        second = self.idle_gateway(DAY, workers=1, shm=first.shm)
        self.refused(second, re.escape(first.shm),
                     r"\b(%d|%s)\b" % (first.master(), "|".join(
                         map(str, first.workers()))))
        self.assertEqual(first.ask().status, 200)
        second.shm = SHM + "not-mine"  # its close() must not take the file

    def test_another_size(self):
        gw = self.gateway(DAY, workers=1)
        for _ in range(5):
            gw.ask()
        # On a reload the old size stays, and that is said.
        gw.size = "16MiB"
        gw.configure(gw.toml)
        gw.hup()
        self.assertEqual(gw.status()["shm"]["size"], 8 << 20)
        self.assertEqual(gw.ask().status, 429)
        self.assertRegex(gw.log(), r"\[warn\].*stays at 8(\.0)? ?MiB")
        self.assertRegex(gw.status()["warnings"][0], r"stays at 8(\.0)? ?MiB")
        # Nobody alive: a new region, with a warning.
        gw.stop()
        gw.start()
        self.assertEqual(gw.status()["shm"]["size"], 16 << 20)
        self.assertEqual(gw.ask().status, 200)

    def test_another_path(self):
        gw = self.gateway(DAY, workers=1)
        for _ in range(5):
            gw.ask()
        gw.call('return sluice.ban("192.0.2.7")')
        # On a reload the old region stays with all it holds.
        before = gw.shm
        other = SHM + "another"
        gw.shm = other
        gw.configure(gw.toml)
        gw.shm = before
        gw.hup()
        self.assertEqual(gw.ask().status, 429)
        self.assertEqual(gw.ask(ip="192.0.2.7").status, 403)
        self.assertFalse(os.path.exists(other))
        said = "%s stays in force until nginx is stopped and started" % before
        self.assertRegex(gw.log(), r"\[warn\].*" + re.escape(said))
        self.assertIn(said, gw.status()["warnings"][0])
        self.assertEqual(gw.status()["shm"]["path"], before)
        # Mended, it is not said any more.
        gw.configure(gw.toml)
        gw.hup()
        self.assertEqual(gw.status()["warnings"], [])
        self.assertEqual(gw.ask().status, 429)

    def test_a_file_that_is_not_a_region(self):
        """Damaged or foreign: replaced or refused, never a crash, and never
        believed."""
        for damage in (b"", b"x", b"\0" * 4096, os.urandom(1 << 16),
                       b"SLUICE" + b"\xff" * (8 << 20)):
            gw = self.idle_gateway(DAY, workers=1)
            with open(gw.shm, "wb") as f:
                f.write(damage)
            try:
                gw.start()
                said = [gw.ask().status for _ in range(6)]
                self.assertEqual(said, [200] * 5 + [429])
            except StartError as error:
                self.assertIn(gw.shm, str(error))

    def test_a_region_damaged_in_place(self):
        """Bytes overturned in a region that looks right: no crash, no shut
        door for everybody."""
        import random
        chance = random.Random(11)
        gw = self.gateway(DAY, workers=1)
        for i in range(200):
            gw.ask(ip="10.0.0.%d" % i)
        gw.stop()
        size = os.path.getsize(gw.shm)
        with open(gw.shm, "r+b") as f:
            for _ in range(4000):
                f.seek(chance.randrange(65536, size - 8))
                f.write(chance.randbytes(8))
        try:
            gw.start()
        except StartError as error:
            self.assertIn(gw.shm, str(error))
            return
        passed = sum(gw.ask(ip="10.1.0.%d" % i).status == 200
                     for i in range(200))
        self.assertGreater(passed, 150)

    def test_a_symlink_or_a_folder_in_its_place(self):
        for make in (lambda p: os.symlink(TMP + "/elsewhere", p), os.mkdir):
            gw = self.idle_gateway(DAY, workers=1)
            make(gw.shm)
            try:
                self.refused(gw, re.escape(gw.shm))
            finally:
                if os.path.islink(gw.shm):
                    os.unlink(gw.shm)
                else:
                    shutil.rmtree(gw.shm)
            self.assertFalse(os.path.exists(TMP + "/elsewhere"))

    def test_a_file_of_somebody_else(self):
        if os.geteuid() != 0:
            self.skipTest("giving a file away needs root")
        gw = self.gateway(DAY, workers=1)
        for _ in range(5):
            gw.ask()
        gw.stop()
        os.chown(gw.shm, 12345, 12345)
        try:
            gw.start()
            # Replaced, then: what stood in it was not believed.
            self.assertEqual(gw.ask().status, 200)
        except StartError as error:
            self.assertIn(gw.shm, str(error))

    def test_a_folder_that_workers_cannot_write(self):
        """Lists are written by workers: said at the start."""
        if os.geteuid() != 0:
            self.skipTest("another user for the workers needs root")
        folder = TMP + "/root-only"
        os.makedirs(folder)
        os.chmod(folder, 0o755)
        gw = self.idle_gateway(DAY, workers=1, shm=folder + "/sluice",
                               user="user nobody nogroup;")
        try:
            gw.start()
        except StartError as error:
            self.assertIn(folder, str(error))
            return
        # Where it can only be seen by a worker, its log says it.
        self.assertIn(folder, gw.log())
        self.assertRegex(gw.log(), r"\[(error|crit|alert|emerg)\]")

    def test_workers_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("another user for the workers needs root")
        redis = self.redis()
        redis("SADD", "sluice:blocklist", "203.0.113.9")
        gw = self.gateway('[store]\nurl = "%s"\n' % redis.url + DAY,
                          workers=2, user="user nobody nogroup;")
        said = [gw.ask().status for _ in range(6)]
        self.assertEqual(said, [200] * 5 + [429])
        self.assertTrue(soon(lambda: gw.ask(ip="203.0.113.9").status == 403))
        self.assertIn("true", gw.call('return sluice.ban("192.0.2.7", 60)'))
        self.assertTrue(soon(lambda: gw.ask(ip="192.0.2.7").status == 403))
        self.assertEqual(os.stat(gw.shm).st_mode & 0o777, 0o600)
        gw.hup()
        self.assertEqual(gw.ask().status, 429)
        self.assertEqual(gw.ask(ip="192.0.2.7").status, 403)

    def test_a_gateway_that_is_not_root_at_all(self):
        if os.geteuid() != 0:
            self.skipTest("becoming another user needs root")
        gw = self.idle_gateway(DAY, workers=2, user="", daemon="off")
        try:
            gw.start(as_user=65534)
        except StartError:
            for path in (LIB, LUA):
                if subprocess.run(["cat", path + "/."], user=65534,
                                  stderr=subprocess.PIPE).stderr.count(
                                      b"denied"):
                    self.skipTest("nobody cannot read " + path)
            raise
        said = [gw.ask().status for _ in range(6)]
        self.assertEqual(said, [200] * 5 + [429])
        self.assertIn("true", gw.call('return sluice.ban("192.0.2.7", 60)'))
        self.assertEqual(gw.ask(ip="192.0.2.7").status, 403)
        self.assertEqual(os.stat(gw.shm).st_uid, 65534)
        gw.stop()
        gw.start(as_user=65534)
        self.assertEqual(gw.ask().status, 429)

    def test_a_list_file_that_workers_may_no_longer_read(self):
        """Its last content stays in force, and that is said."""
        if os.geteuid() != 0:
            self.skipTest("another user for the workers needs root")
        path = TMP + "/private.txt"
        with open(path, "w") as f:
            f.write("203.0.113.1\n")
        os.chmod(path, 0o600)
        gw = self.gateway('[lists]\nblocklist = ["%s"]\n' % path + DAY,
                          workers=2, user="user nobody nogroup;")
        self.assertEqual(gw.ask(ip="203.0.113.1").status, 403)
        with open(path, "w") as f:
            f.write("203.0.113.2\n")
        self.assertTrue(soon(lambda: path in gw.log(), 4))
        self.assertEqual(gw.ask(ip="203.0.113.1").status, 403)
        self.assertEqual(gw.ask(ip="203.0.113.2").status, 200)
        # The master may: a reload reads it.
        gw.hup()
        self.assertEqual(gw.ask(ip="203.0.113.1").status, 200)
        self.assertEqual(gw.ask(ip="203.0.113.2").status, 403)

    def test_the_warning_of_a_list_goes_with_what_it_is_about(self):
        """Without a reload; and a reload that finds a bad file as it was
        still says so."""
        path = TMP + "/warned.txt"

        def write(text):
            with open(path + ".new", "w") as f:
                f.write(text)
            os.rename(path + ".new", path)

        def warned():
            return [w for w in gw.status()["warnings"] if path in w]

        write("203.0.113.1\nnobody\n203.0.113.2\n")
        gw = self.gateway('[lists]\nblocklist = ["%s"]\n' % path + DAY,
                          workers=2)
        self.assertEqual(len(warned()), 1)
        gw.hup()
        self.assertEqual(len(warned()), 1)
        write("203.0.113.1\n203.0.113.2\n")
        self.assertTrue(soon(lambda: not warned()))
        # One that is hardly a list: its content is not taken, and still said.
        write("<html>\n<body>\n")
        self.assertTrue(soon(lambda: len(warned()) == 3))
        self.assertEqual(gw.ask(ip="203.0.113.1").status, 403)
        write("203.0.113.3\n")
        self.assertTrue(soon(lambda: not warned()))
        gw.hup()
        self.assertEqual(warned(), [])

    def test_its_file_taken_away_while_it_runs(self):
        """What is mapped goes on; after a reload nothing crashes."""
        gw = self.gateway(DAY, workers=1)
        for _ in range(5):
            gw.ask()
        os.unlink(gw.shm)
        self.assertEqual(gw.ask().status, 429)
        os.kill(gw.master(), signal.SIGHUP)
        time.sleep(1)
        self.assertIn(gw.ask(ip="10.0.0.1").status, (200, 429))

    def test_nginx_t_touches_nothing(self):
        gw = self.gateway(DAY, workers=1)
        for _ in range(5):
            gw.ask()
        done = subprocess.run(gw.command() + ["-t"], capture_output=True)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(gw.ask().status, 429)
        self.assertEqual(len(gw.workers()), 1)


class Processes(Case):
    """B95: the library is loaded in the master, threads are the workers'."""

    def round(self, gw):
        for i in range(100):
            began = time.monotonic()
            self.assertEqual(gw.ask(ip="10.0.0.%d" % i).status, 200)
            self.assertLess(time.monotonic() - began, 1.05)

    def toml(self, redis):
        return '[store]\nbackend = "redis"\nurl = "%s"\ntimeout = "500ms"\n' \
            % redis.url + DAY

    CALLS = ('local s = require("resty.sluice") for _, name in ipairs { '
             '"access", "header", "log", "check", "ban", "unban", "metrics", '
             '"status" } do pcall(s[name], "day", "k", 1) end')

    def test_every_function_called_in_init_then_requests(self):
        gw = self.gateway(self.toml(self.redis()), workers=2,
                          before_setup=self.CALLS, after_setup=self.CALLS)
        self.round(gw)
        gw.hup()
        self.assertEqual(gw.ask(ip="10.2.0.1").status, 200)

    def test_without_a_master(self):
        redis = self.redis()
        gw = self.gateway(self.toml(redis), workers=1, master="off")
        self.round(gw)
        self.assertEqual(len(redis.buckets()) >= 100, True)

    def test_in_the_foreground(self):
        gw = self.gateway(self.toml(self.redis()), workers=2, daemon="off")
        self.round(gw)
        gw.hup()
        self.assertEqual(gw.ask(ip="10.2.0.1").status, 200)

    def test_beside_cache_manager_and_privileged_agent(self):
        gw = self.gateway(
            self.toml(self.redis()), workers=2,
            after_setup='require("ngx.process").enable_privileged_agent(64)',
            http="proxy_cache_path %s/cache keys_zone=c:1m;" % TMP)
        self.round(gw)
        self.assertEqual(len(gw.status()["workers"]), 2)
        gw.hup()
        self.assertEqual(gw.ask(ip="10.2.0.1").status, 200)


class Signals(Case):
    """B96: nginx's signals are nginx's."""

    def test_threads_block_them(self):
        redis = self.redis()
        gw = self.gateway('[store]\nbackend = "redis"\nurl = "%s"\n'
                          % redis.url + DAY, workers=2)
        gw.ask()
        wanted = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
                  signal.SIGWINCH, signal.SIGQUIT, signal.SIGTERM,
                  signal.SIGCHLD, signal.SIGALRM, signal.SIGIO, signal.SIGINT]
        seen = 0
        for pid in gw.workers():
            for task in os.listdir("/proc/%d/task" % pid):
                if int(task) == pid:
                    continue
                seen += 1
                with open("/proc/%d/task/%s/status" % (pid, task)) as f:
                    mask = int(re.search(r"SigBlk:\s+(\w+)", f.read())
                               .group(1), 16)
                for number in wanted:
                    self.assertTrue(mask >> number - 1 & 1,
                                    signal.Signals(number).name)
        self.assertGreaterEqual(seen, 2)

    def test_a_storm(self):
        redis = self.redis()
        gw = self.gateway('[store]\nbackend = "redis"\nurl = "%s"\n'
                          'timeout = "500ms"\n' % redis.url
                          + rule("wide", "1000/s", 100000), workers=2)
        load = Load(gw, per_second=200, fresh=True)
        load.start()
        log = gw.prefix + "/error.log"
        for i in range(200 if SOAK else 40):
            os.rename(log, log + ".%d" % i)
            os.kill(gw.master(), signal.SIGUSR1)
            self.assertTrue(soon(lambda: os.path.exists(log), 5, 0.005))
            if i % 4 == 0:
                os.kill(gw.master(), signal.SIGHUP)
            for pid in gw.workers():
                os.kill(pid, signal.SIGUSR1)
            if i % 10 == 5 and len(gw.workers()) >= 2:
                pid = gw.workers()[0]
                os.kill(pid, signal.SIGQUIT)
                self.assertTrue(soon(lambda: not alive(pid), 6, 0.005))
        self.assertTrue(soon(lambda: len(gw.workers()) == 2
                             and not gw.leavers(), 10))
        counts = load.stop()
        self.assertEqual(set(counts), {200})
        text = ""
        for name in os.listdir(gw.prefix):
            if name.startswith("error.log"):
                with open(gw.prefix + "/" + name, errors="replace") as f:
                    text += f.read()
        self.assertNotIn("exited on signal", text)

    def test_winch_then_hup(self):
        """The workers leave, the master stays, and starts new ones."""
        gw = self.gateway(DAY, workers=2)
        gw.ask()
        master = gw.master()
        os.kill(master, signal.SIGWINCH)
        self.assertTrue(soon(lambda: not children(master), 6))
        os.kill(master, signal.SIGHUP)
        self.assertTrue(soon(lambda: len(gw.workers()) == 2, 6))
        self.assertEqual(gw.ask().left, 3)


class Connections(Case):
    expected_in_log = r"\[alert\].*worker_connections are not enough"

    def test_b93_all_connections_taken(self):
        """Timers that could not run go on when there is room again."""
        redis = self.redis()
        gw = self.gateway('[store]\nurl = "%s"\n' % redis.url + DAY,
                          workers=1, connections=64)
        gw.ask()
        held = []
        for _ in range(200):
            try:
                held.append(Connection(gw.address, 0.5))
            except OSError:
                break
        time.sleep(10 if SOAK else 4)
        for connection in held:
            connection.close()
        time.sleep(0.3)
        redis("SADD", "sluice:blocklist", "203.0.113.9")

        def blocked():
            try:
                return gw.ask(ip="203.0.113.9").status == 403
            except OSError:
                return False
        self.assertTrue(soon(blocked, 3))
        before = gw.requests_total()["pass"]
        gw.ask(ip="10.0.0.1")
        self.assertEqual(gw.requests_total()["pass"], before + 1)


if __name__ == "__main__":
    main()
