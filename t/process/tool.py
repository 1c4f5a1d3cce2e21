#!/usr/bin/env python3
"""`sluice check FILE`: exit codes, and one line an error on stderr."""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import BIN, ROOT, TMP, Case, main  # noqa: E402

GOOD = '[[rules]]\nname = "login"\nrate = "5/m"\ncapacity = 5\n'


class Check(Case):
    def setUp(self):
        super().setUp()
        if not os.path.exists(BIN):
            self.skipTest("no tool at %s (SLUICE_BIN)" % BIN)

    def check(self, text, name="sluice.toml", **env):
        path = "%s/%s" % (TMP, name)
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return path, self.run_tool("check", path, **env)

    @staticmethod
    def run_tool(*args, **env):
        return subprocess.run([BIN, *args], capture_output=True, text=True,
                              timeout=20, env={**os.environ, **env},
                              stdin=subprocess.DEVNULL)

    def test_good(self):
        _, done = self.check(GOOD)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_each_error_is_one_line_that_names_file_and_field(self):
        path, done = self.check(GOOD + "[store]\ntimeout = 5\nsync = \"x\"\n"
                                '[[rules]]\nname = "a b"\nrate = "5/m"\n'
                                "capacity = 0\n")
        self.assertEqual(done.returncode, 1)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 4, done.stderr)
        for line in lines:
            self.assertTrue(line.startswith(path + ": "), line)
        for field in ("store.timeout", "store.sync", "rules[1].name",
                      "rules[1].capacity"):
            self.assertEqual(sum("%s: %s: " % (path, field) in line
                                 for line in lines), 1, field)

    def test_warnings_do_not_fail(self):
        path, done = self.check(
            '[[rules]]\nname = "loose"\nkey = ["ua"]\nrate = "5/m"\n'
            'capacity = 5\n[client]\ntrusted_proxies = ["0.0.0.0/0"]\n')
        self.assertEqual(done.returncode, 0)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 2, done.stderr)
        for line in lines:
            self.assertTrue(line.startswith("warning: %s: " % path), line)

    def test_unreadable_and_broken(self):
        done = self.run_tool("check", TMP + "/absent.toml")
        self.assertEqual(done.returncode, 1)
        self.assertIn(TMP + "/absent.toml", done.stderr)
        for text in ("[[rules", b"\xff\xfe\x00", "{", "x" * 100000):
            path, done = self.check(text)
            self.assertEqual(done.returncode, 1)
            self.assertIn(path, done.stderr)
        path, done = self.check('{"rules": [', "sluice.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn(path, done.stderr)

    def test_json(self):
        _, done = self.check('{"rules": [{"name": "a", "rate": "5/m", '
                             '"capacity": 5}]}', "sluice.json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_wrong_usage(self):
        for args in ((), ("chek", "x"), ("check",), ("check", "--nope", "x"),
                     ("check", "a", "b", "c")):
            done = self.run_tool(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertTrue(done.stderr, args)

    def test_lists_and_secrets_are_read(self):
        with open(TMP + "/list.txt", "w") as f:
            f.write("203.0.113.9\n10.0.0.0/33\nrubbish\n" + "192.0.2.1\n" * 9)
        path, done = self.check(
            GOOD + '[lists]\nblocklist = ["%s/list.txt"]\n' % TMP)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("list.txt", done.stderr)
        self.assertIn("warning:", done.stderr)
        self.assertRegex(done.stderr, r"\b2\b")
        _, done = self.check(
            GOOD + '[lists]\nblocklist = ["%s/none.txt"]\n' % TMP)
        self.assertEqual(done.returncode, 1)
        self.assertIn("none.txt", done.stderr)
        _, done = self.check(GOOD + '[store]\nurl = "redis://h/0"\n'
                             'password_file = "%s/nokey"\n' % TMP)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nokey", done.stderr)
        _, done = self.check(GOOD + '[store]\nurl = "redis://h/0"\n'
                             'password_env = "SLUICE_T_PASSWORD"\n',
                             SLUICE_T_PASSWORD="x")
        self.assertEqual(done.returncode, 0, done.stderr)
        _, done = self.check(GOOD + '[store]\nurl = "redis://h/0"\n'
                             'password_env = "SLUICE_T_NO_PASSWORD"\n')
        self.assertEqual(done.returncode, 1)
        self.assertIn("SLUICE_T_NO_PASSWORD", done.stderr)

    def test_b30_redis_is_not_waited_for(self):
        began = time.monotonic()
        _, done = self.check(GOOD + '[store]\nbackend = "redis"\n'
                             'url = "redis://127.0.0.1:1/0"\n')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(time.monotonic() - began, 2)

    def test_the_shipped_example(self):
        done = self.run_tool("check", ROOT + "/openresty-conf/sluice.toml")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main()
