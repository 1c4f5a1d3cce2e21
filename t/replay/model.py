#!/usr/bin/env python3
"""A second reading of the contract: what each request of the replay must be
answered. Written from the contract alone and plain on purpose; it shares
nothing with the library or with the harness that calls it.

    model.py RULES REQUESTS LIST... > verdicts

RULES is a JSON list of { name, capacity, path?, method? }; REQUESTS has a
line `METHOD TARGET CLIENT` a request, in order; each LIST is a file of the
blocklist. A line `verdict rule status` comes out for each request; where the
contract leaves open which rule is named, the rules are joined by commas.

Buckets refill so slowly (1/d) that the clock plays no part: a bucket is the
number of tokens that are left.
"""
import ipaddress
import json
import re
import sys


class Networks:
    """Membership by its definition: is any prefix of the address in the
    list?"""

    def __init__(self, paths):
        self.by_length = {4: {}, 6: {}}
        for path in paths:
            with open(path) as f:
                for line in f:
                    line = line.split("#")[0].strip()
                    if line:
                        net = ipaddress.ip_network(line, strict=False)
                        self.by_length[net.version].setdefault(
                            net.prefixlen, set()).add(int(net.network_address))

    def holds(self, text):
        ip = ipaddress.ip_address(text)
        value, bits = int(ip), ip.max_prefixlen
        return any(value >> bits - length << bits - length in found
                   for length, found in self.by_length[ip.version].items())


def normalised(target):
    """The path of a request line as nginx makes $uri of it: without the
    query, decoded, slashes merged, dot segments resolved."""
    raw = target.split("?", 1)[0].encode("latin-1")
    path = re.sub(rb"%([0-9A-Fa-f]{2})",
                  lambda m: bytes([int(m.group(1), 16)]), raw)
    kept = []
    parts = path.split(b"/")[1:]
    for n, part in enumerate(parts):
        if part == b"..":
            kept.pop()
        elif part not in (b"", b"."):
            kept.append(part)
            continue
        if n == len(parts) - 1:
            kept.append(b"")
    return b"/" + b"/".join(kept)


def group(text):
    """Clients are told apart by 32 bits of IPv4 and 64 of IPv6."""
    ip = ipaddress.ip_address(text)
    return int(ip) if ip.version == 4 else (int(ip) >> 64, 6)


def matches(rule, method, path):
    if "method" in rule and method not in rule["method"]:
        return False
    if "path" not in rule:
        return True
    for pattern in rule["path"]:
        if pattern.startswith("~"):
            if re.search(pattern[1:].encode(), path):
                return True
        elif pattern.endswith("/*"):
            base = pattern[:-2].encode()
            if path == base or path.startswith(base + b"/"):
                return True
        elif path == pattern.encode():
            return True
    return False


class Buckets:
    def __init__(self):
        self.left = {}
        # When a bucket was first taken from. All refill at one rate, so of
        # two empty ones the later begun refuses for longer.
        self.begun = {}
        self.requests = 0

    def decide(self, rules, client):
        self.requests += 1
        keys = {r["name"]: (r["name"], client) for r in rules}
        left = {r["name"]: self.left.get(keys[r["name"]], r["capacity"])
                for r in rules}
        refusing = [name for name in left if left[name] < 1]
        if refusing:
            # The longest wait. Where waits are the same the contract leaves
            # open which: all of them are named.
            latest = max(self.begun[keys[n]] for n in refusing)
            return "limited", ",".join(sorted(
                n for n in refusing if self.begun[keys[n]] == latest)), 429
        if not rules:
            return "pass", "-", 200
        for r in rules:
            key = keys[r["name"]]
            self.begun.setdefault(key, self.requests)
            self.left[key] = left[r["name"]] - 1
        # The smallest share left; the earlier name where shares are equal.
        return "pass", min(rules, key=lambda r: (
            self.left[keys[r["name"]]] / r["capacity"], r["name"]))["name"], \
            200


def main():
    with open(sys.argv[1]) as f:
        rules = json.load(f)
    blocklist = Networks(sys.argv[3:])
    buckets = Buckets()
    with open(sys.argv[2]) as f:
        for line in f:
            method, target, client = line.split()
            if blocklist.holds(client):
                said = "blocked", "-", 403
            else:
                path = normalised(target)
                said = buckets.decide(
                    [r for r in rules if matches(r, method, path)],
                    group(client))
            print(*said)


if __name__ == "__main__":
    main()
