"""A second reading of the contract: what each request of a replay must be
answered. Written from the contract alone and slow on purpose; it shares
nothing with the library.

Here buckets refill so slowly (1/d) that the clock plays no part: a bucket is
the number of tokens that are left.
"""
import ipaddress
import re


class Networks:
    """Membership by the plain definition: is any prefix of the address, of
    any length, in the set?"""

    def __init__(self, lines):
        self.sets = {4: {}, 6: {}}
        for line in lines:
            line = line.split("#")[0].strip()
            if not line:
                continue
            net = ipaddress.ip_network(line, strict=False)
            self.sets[net.version].setdefault(net.prefixlen, set()).add(
                int(net.network_address))

    def holds(self, text):
        ip = ipaddress.ip_address(text)
        bits = ip.max_prefixlen
        value = int(ip)
        return any(value >> (bits - length) << (bits - length) in found
                   for length, found in self.sets[ip.version].items())


def normalised(target):
    """The path of a request line as nginx makes $uri of it: without the
    query, decoded, slashes merged, dot segments resolved. None: refused."""
    path = target.split("?", 1)[0].split("#", 1)[0]
    out = bytearray()
    i, raw = 0, path.encode("latin-1")
    while i < len(raw):
        if raw[i] == 0x25:
            digits = raw[i + 1:i + 3]
            if not re.fullmatch(rb"[0-9A-Fa-f]{2}", digits):
                return None
            out.append(int(digits, 16))
            i += 3
        else:
            out.append(raw[i])
            i += 1
    if b"\0" in out:
        return None
    segments = bytes(out).split(b"/")[1:]
    kept = []
    for n, segment in enumerate(segments):
        last = n == len(segments) - 1
        if segment == b"..":
            if not kept:
                return None
            kept.pop()
        elif segment != b"." and segment != b"":
            kept.append(segment)
            continue
        if last:
            kept.append(b"")
    return b"/" + b"/".join(kept)


def group(text):
    """Addresses are grouped by prefix for keys: 32 bits, 64 bits."""
    ip = ipaddress.ip_address(text)
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.ip_network((ip, 64), strict=False).network_address)


class Rule:
    def __init__(self, name, capacity, paths=(), methods=None):
        self.name, self.capacity = name, capacity
        self.paths, self.methods = paths, methods
        self.left = {}

    def matches(self, method, path):
        if self.methods is not None and method not in self.methods:
            return False
        for pattern in self.paths:
            if pattern.startswith("~"):
                if re.search(pattern[1:].encode(), path):
                    return True
            elif pattern.endswith("/*"):
                base = pattern[:-2].encode()
                if path == base or path.startswith(base + b"/"):
                    return True
            elif path == pattern.encode():
                return True
        return not self.paths


class Model:
    def __init__(self, blocklist, rules):
        self.blocklist, self.rules = blocklist, rules

    def decide(self, method, target, client):
        """verdict, rule, status."""
        if self.blocklist.holds(client):
            return "blocked", "-", 403
        path = normalised(target)
        asked = [r for r in self.rules if r.matches(method, path)]
        key = group(client)
        left = {r.name: r.left.get(key, r.capacity) for r in asked}
        refusing = [r for r in asked if left[r.name] < 1]
        if refusing:
            # Reported is the rule that refuses for longest. All refill at
            # the same rate, so it is the one that was emptied last; the
            # caller has made sure that this cannot be told apart, or keeps
            # the order.
            last = max(refusing, key=lambda r: r.emptied[key])
            return "limited", last.name, 429
        for r in asked:
            r.left[key] = left[r.name] - 1
            if r.left[key] == 0:
                r.emptied = getattr(r, "emptied", {})
                self.clock = getattr(self, "clock", 0) + 1
                r.emptied[key] = self.clock
        if not asked:
            return "pass", "-", 200
        # The smallest share left, the earlier name on a tie.
        shown = min(asked, key=lambda r: (r.left[key] / r.capacity, r.name))
        return "pass", shown.name, 200
