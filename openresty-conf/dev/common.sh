# shellcheck shell=bash
# What the scripts that start an nginx of their own have in common: which nginx, with
# which modules; free ports; and nothing left behind. To be sourced.

# Sets NGINX (the program), NGINX_KIND (debian, openresty, other) and NGINX_MODULES (the
# load_module lines it needs for Lua). NGINX may name a program beforehand.
find_nginx() {
    local candidate built dir
    for candidate in ${NGINX:-nginx openresty /usr/sbin/nginx \
        /usr/local/openresty/nginx/sbin/nginx /usr/local/openresty/bin/openresty}; do
        command -v "$candidate" >/dev/null || continue
        built=$("$candidate" -V 2>&1)
        NGINX_MODULES=
        case $built in
        *openresty*)
            NGINX=$(command -v "$candidate") NGINX_KIND=openresty
            return 0 ;;
        *lua-nginx-module*|*ngx_lua*)
            NGINX=$(command -v "$candidate") NGINX_KIND=other
            return 0 ;;
        esac
        dir=$(sed -n 's/.*--modules-path=\([^ ]*\).*/\1/p' <<< "$built")
        if [ -e "$dir/ngx_http_lua_module.so" ]; then
            NGINX=$(command -v "$candidate") NGINX_KIND=debian
            [ -e "$dir/ndk_http_module.so" ] && NGINX_MODULES="load_module $dir/ndk_http_module.so;
"
            NGINX_MODULES+="load_module $dir/ngx_http_lua_module.so;"
            return 0
        fi
    done
    echo "no nginx with Lua found (on Debian: apt-get install nginx libnginx-mod-http-lua" \
        "lua-resty-core); NGINX= may name one" >&2
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
