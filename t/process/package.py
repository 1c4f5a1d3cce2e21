#!/usr/bin/env python3
"""The library as a file: what it needs, what it shows, and that parts of
different releases refuse each other by name."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import (BIN, LIB, LUA, ROOT, TMP, Case,  # noqa: E402
                     StartError, free_port, main, rule)

LIBRARY = LIB + "/libsluice.so"


def readelf(*options):
    return subprocess.run(["readelf", "-W", *options, LIBRARY],
                          capture_output=True, text=True, check=True).stdout


class File(Case):
    def setUp(self):
        super().setUp()
        if not shutil.which("readelf"):
            self.skipTest("readelf (binutils) is not installed")

    def test_b111_needs_only_the_c_library(self):
        needed = re.findall(r"NEEDED.*\[(.*?)\]", readelf("-d"))
        self.assertTrue(needed)
        for name in needed:
            self.assertRegex(name, r"^(libc|libm|libgcc_s|libpthread|libdl|"
                                   r"librt|ld-linux[-\w]*)\.so")

    def test_b111_no_executable_stack(self):
        stack = re.search(r"GNU_STACK.*", readelf("-l")).group()
        self.assertNotIn("RWE", stack)
        self.assertNotIn(" E ", stack)

    def test_never_unmapped(self):
        self.assertRegex(readelf("-d"), "NODELETE")

    def test_b111_glibc_version(self):
        """Not newer than Debian 12's, or what the README states."""
        versions = [tuple(map(int, v.split("."))) for v in re.findall(
            r"GLIBC_(\d+(?:\.\d+)+)", readelf("--dyn-syms"))]
        self.assertLessEqual(max(versions), (2, 36))

    def test_shows_nothing_but_its_own(self):
        shown = [line.split()[7].split("@")[0]
                 for line in readelf("--dyn-syms").splitlines()
                 if re.search(r" (FUNC|OBJECT) +(GLOBAL|WEAK) +DEFAULT +\d",
                              line)]
        self.assertTrue([n for n in shown if n.startswith("sluice_")])
        odd = [n for n in shown if not re.match(r"sluice_|luaopen_sluice", n)]
        self.assertEqual(odd, [])

    def test_takes_lua_from_its_host(self):
        """None of LuaJIT is linked in: nginx brings it."""
        text = readelf("--dyn-syms")
        self.assertRegex(text, r"UND +lua_")
        self.assertNotRegex(text, r"DEFAULT +\d+ +lua_")


class Versions(Case):
    """B112, B113: refused at the start, both versions named, no crash."""

    def altered(self, name, pattern, replacement):
        folder = TMP + "/lua-" + name
        shutil.copytree(LUA, folder)
        path = folder + "/resty/sluice/library.lua"
        with open(path) as f:
            text = f.read()
        changed, n = re.subn(pattern, replacement, text, count=1)
        self.assertEqual(n, 1, "nothing to alter in library.lua")
        with open(path, "w") as f:
            f.write(changed)
        return folder

    def refused(self, folder, *patterns):
        gw = self.idle_gateway(rule(), workers=1, lua=folder)
        with self.assertRaises(StartError) as caught:
            gw.start()
        text = str(caught.exception)
        for pattern in patterns:
            self.assertRegex(text, pattern)
        self.assertNotIn("Segmentation", text)

    def test_b112_another_abi(self):
        folder = self.altered("abi", r"local ABI = (\d+)", "local ABI = 99")
        self.refused(folder, r"ABI 99", r"ABI \d+\)", r"\d+\.\d+\.\d+",
                     re.escape(LIBRARY))

    def test_b113_a_field_of_another_width(self):
        folder = self.altered("width", r"int32_t   action;",
                              "double   action;")
        self.refused(folder, r"layout", re.escape(LIBRARY), r"\d+\.\d+\.\d+")

    def test_b113_a_field_more(self):
        folder = self.altered("more", r"uint32_t        given;",
                              "uint32_t given; double more;")
        self.refused(folder, r"layout", re.escape(LIBRARY))

    def test_b113_fields_exchanged(self):
        folder = self.altered("order", r"double    seconds;\s+double    remaining;",
                              "double remaining; double seconds;")
        self.refused(folder, r"layout", re.escape(LIBRARY))

    def test_b111_a_file_that_is_no_library(self):
        folder = TMP + "/lib-none"
        os.makedirs(folder)
        with open(folder + "/libsluice.so", "w") as f:
            f.write("not a library")
        gw = self.idle_gateway(rule(), workers=1, lib=folder,
                               lua=self.copy_of_lua("alone"))
        with self.assertRaises(StartError) as caught:
            gw.start()
        self.assertIn(folder + "/libsluice.so", str(caught.exception))

    def copy_of_lua(self, name):
        """Away from the repository, where nothing lies beside it."""
        folder = TMP + "/deep/er/lua-" + name
        shutil.copytree(LUA, folder)
        return folder

    def test_found_beside_the_lua_files_and_under_prefix(self):
        for place, lua in (("%s/beside", "%s/beside"),
                           ("%s/prefix/lib", "%s/prefix/share/lua/5.1")):
            lua, place = lua % TMP, place % TMP
            shutil.copytree(LUA, lua)
            os.makedirs(place, exist_ok=True)
            shutil.copy(LIBRARY, place)
            gw = self.gateway(rule(), workers=1, lua=lua, lib="/nowhere")
            self.assertEqual([gw.ask().status for _ in range(6)],
                             [200] * 5 + [429])

    def test_b112_the_file_replaced_then_hup(self):
        """Old and new workers each use one consistent pair."""
        folder = TMP + "/lib-replaced"
        os.makedirs(folder)
        shutil.copy(LIBRARY, folder)
        gw = self.gateway(rule(), workers=1, lib=folder)
        for _ in range(2):
            gw.ask()
        shutil.copy(LIBRARY, folder + "/new.so")
        os.rename(folder + "/new.so", folder + "/libsluice.so")
        gw.hup()
        self.assertEqual([gw.ask().status for _ in range(4)],
                         [200] * 3 + [429])


class Tree(Case):
    def test_no_lua_function_is_cast_to_c(self):
        """B99, statically."""
        for folder, _, names in os.walk(LUA):
            for name in names:
                with open(os.path.join(folder, name)) as f:
                    text = f.read()
                self.assertNotRegex(text, r"\(\s*\*\s*\w*\s*\)\s*\(", name)

    def test_what_is_installed_names_its_own_place(self):
        to = TMP + "/installed"
        subprocess.run(
            ["make", "-s", "-C", ROOT, "install", "BUILT=" + LIB,
             "PREFIX=/opt/sluice", "DESTDIR=" + to], check=True,
            stdout=subprocess.DEVNULL)
        conf = to + "/opt/sluice/share/sluice/conf/"
        for name in ("sluice.conf", "nginx.conf", "sluice.toml"):
            with open(conf + name) as f:
                text = f.read()
            self.assertNotIn("/usr/local", text, name)
            self.assertEqual(os.stat(conf + name).st_mode & 0o777, 0o644)
            if name != "sluice.toml":
                self.assertIn("include /opt/sluice/share/sluice/conf/"
                              "sluice.conf;", text)

    def test_make_run_names_the_file_that_is_bad(self):
        bad = TMP + "/bad.toml"
        with open(bad, "w") as f:
            f.write("[shm]\nsize = 1\n")
        # It looks for the tool among what `make build` has made.
        built = TMP + "/target/release"
        os.makedirs(built)
        os.symlink(BIN, built + "/sluice")
        # Nobody listens where the port is free.
        env = dict(os.environ, SLUICE_TARGET=TMP + "/target",
                   UPSTREAM="http://127.0.0.1:9", PORT=str(free_port()),
                   STATUS_PORT=str(free_port()))
        for config, said in (
                (TMP + "/none.toml", "CONFIG=%s/none.toml: there is no such "
                 "file, or it cannot be read\n" % TMP),
                (bad, bad + ": shm.size: must be a size")):
            done = subprocess.run(
                [ROOT + "/openresty-conf/dev/run"],
                env=dict(env, CONFIG=config), capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertTrue(done.stderr.startswith(said), done.stderr)

    def test_the_shipped_configuration_keeps_its_promises(self):
        conf = ROOT + "/openresty-conf/nginx.conf"
        with open(conf) as f:
            text = f.read()
        self.assertIn("sluice.conf", text)
        for directive in ("proxy_next_upstream", "proxy_connect_timeout",
                          "proxy_read_timeout", "lua_check_client_abort"):
            self.assertIn(directive, text)
        self.assertNotRegex(text, r"(?m)^[^#]*proxy_ignore_client_abort\s+on")


if __name__ == "__main__":
    main()
