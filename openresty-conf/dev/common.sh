# shellcheck shell=bash
# What the scripts that start an nginx of their own have in common: which nginx, with
# which modules; free ports; and nothing left behind. To be sourced.
#
# ROOT is the repository, TARGET where cargo builds.
# shellcheck disable=SC2034  # what is set here is used where this is sourced
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TARGET=${SLUICE_TARGET:-${CARGO_TARGET_DIR:-$ROOT/target}}

# Sets NGINX_BIN (the program), NGINX_KIND (debian, openresty, other) and NGINX_MODULES (the
# load_module lines that it needs for Lua). NGINX_BIN may name a program beforehand. (It is
# not called NGINX: nginx itself takes a variable of that name for sockets to inherit.)
find_nginx() {
    local candidate built dir
    for candidate in ${NGINX_BIN:-nginx openresty /usr/sbin/nginx \
        /usr/local/openresty/nginx/sbin/nginx /usr/local/openresty/bin/openresty}; do
        command -v "$candidate" >/dev/null || continue
        built=$("$candidate" -V 2>&1)
        NGINX_MODULES=
        case $built in
        *openresty*)
            NGINX_BIN=$(command -v "$candidate") NGINX_KIND=openresty
            return 0 ;;
        *lua-nginx-module*|*ngx_lua*)
            NGINX_BIN=$(command -v "$candidate") NGINX_KIND=other
            return 0 ;;
        esac
        dir=$(sed -n 's/.*--modules-path=\([^ ]*\).*/\1/p' <<< "$built")
        if [ -e "$dir/ngx_http_lua_module.so" ]; then
            NGINX_BIN=$(command -v "$candidate") NGINX_KIND=debian
            [ -e "$dir/ndk_http_module.so" ] && NGINX_MODULES="load_module $dir/ndk_http_module.so;
"
            NGINX_MODULES+="load_module $dir/ngx_http_lua_module.so;"
            return 0
        fi
    done
    echo "no nginx with Lua found (on Debian: apt-get install nginx libnginx-mod-http-lua" \
        "lua-resty-core); NGINX_BIN= may name one" >&2
    return 1
}

# The `user` line for a server that reads its files out of a checkout: as root, whose
# home others may not read, the workers stay root. Never for a server that others reach.
nginx_user() {
    if [ "$(id -u)" = 0 ]; then echo "user root;"; fi
}

# port_busy PORT [ADDRESS]
port_busy() {
    (exec 3<>"/dev/tcp/${2:-127.0.0.1}/$1") 2>/dev/null
}

# free_port FROM: the first free port at or after FROM.
free_port() {
    local port=$1
    while port_busy "$port"; do port=$((port + 1)); done
    echo "$port"
}

# wait_for_port PORT PID NAME: until it answers; fails when the process has ended.
wait_for_port() {
    local i
    for ((i = 0; i < 200; i++)); do
        port_busy "$1" && return 0
        kill -0 "$2" 2>/dev/null || break
        sleep 0.05
    done
    echo "$3 did not start on port $1" >&2
    return 1
}

# Processes of ours, stopped by stop_all in reverse order, by their ids.
STARTED=()
started() { STARTED=("$1" "${STARTED[@]}"); }
stop_all() {
    local pid
    for pid in "${STARTED[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    STARTED=()
}

# As many connections as this machine lets us have. Sets WORKER_CONNECTIONS.
raise_limits() {
    ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
    WORKER_CONNECTIONS=$(ulimit -n)
    [ "$WORKER_CONNECTIONS" != unlimited ] && [ "$WORKER_CONNECTIONS" -le 16384 ] ||
        WORKER_CONNECTIONS=16384
}

# nginx_conf DIR WORKERS: the beginning of an nginx.conf for a server that keeps
# everything it writes under DIR, with http { still open.
nginx_conf() {
    local dir=$1 workers=$2 lua=${SLUICE_LUA:-$ROOT/lua} lib=${SLUICE_LIB:-$TARGET/release}
    mkdir -p "$dir/tmp"
    cat <<CONF
$NGINX_MODULES
$(nginx_user)
daemon off;
worker_processes $workers;
worker_shutdown_timeout 5s;
pid $dir/nginx.pid;
error_log $dir/error.log warn;
events { worker_connections $WORKER_CONNECTIONS; }
http {
    client_body_temp_path $dir/tmp/body;
    proxy_temp_path       $dir/tmp/proxy;
    fastcgi_temp_path     $dir/tmp/fastcgi;
    uwsgi_temp_path       $dir/tmp/uwsgi;
    scgi_temp_path        $dir/tmp/scgi;
    default_type text/plain;
    keepalive_requests 1000000;

    lua_package_path  "$lua/?.lua;;";
    lua_package_cpath "$lib/?.so;;";
    include $ROOT/openresty-conf/sluice.conf;
    lua_check_client_abort on;
    proxy_http_version 1.1;
    proxy_connect_timeout 2s;
    proxy_read_timeout 30s;
    proxy_next_upstream off;
CONF
}

# start_nginx DIR PORT: runs DIR/nginx.conf and waits until PORT answers.
start_nginx() {
    "$NGINX_BIN" -p "$1" -e "$1/error.log" -c "$1/nginx.conf" > "$1/nginx.out" 2>&1 &
    started $!
    wait_for_port "$2" $! nginx || {
        cat "$1/nginx.out" "$1/error.log" >&2 2>/dev/null || true
        return 1
    }
}

# with_shm_path FILE SHM: FILE with its shm.path replaced, so that what is tried out
# does not touch a gateway that runs on this machine.
with_shm_path() {
    sed 's#^path *= *"/dev/shm/[^"]*"#path = "'"$2"'"#' "$1"
}
