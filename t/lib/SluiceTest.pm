# What every suite shares, so that a case is only what it adds.
#
#     use FindBin;
#     use lib "$FindBin::Bin/lib";
#     use SluiceTest;
#     use Test::Nginx::Socket 'no_plan';
#
#     run_tests();
#
# Each block gets nginx with the library set up from its section `toml` (or
# `json`, or `table`, the inside of a Lua table), our hooks at server level,
# what was decided in the fields X-Verdict, X-Rule, X-Level, X-Client and
# X-Wait-Ms, a location that answers "ok", /metrics and /status, and a region
# of shared memory of its own. Loopback is a trusted proxy, so X-Forwarded-For
# says who a client is. Further sections:
#
#     driver     Lua (t/lib/lua/driver.lua) that sends requests to this server;
#                what it says is the body of the answer
#     redis      starts an empty Redis; the lines are commands for it
#     mute       (present) $MUTE_PORT listens and never answers
#     backend    (present) a backend behind /b/…, http://$BACKEND, that does as
#                it is told (t/lib/lua/backend.lua)
#     hooks      "none": no hooks at server level; "user": access() is told the
#                user of X-User and the pool of X-Pool
#     before_setup, after_setup, before_start, after_start
#                Lua around the two calls
#     no_include (present) sluice.conf is not included
#
# Environment: SLUICE_LUA and SLUICE_LIB, the folders of the Lua files and of
# libsluice.so; else this repository's lua/ and target/fast/.
# SLUICE_TEST_FALLBACK: lua-resty-core's functions are taken for changed.
package SluiceTest;

use strict;
use warnings;

use Cwd ();
use File::Basename qw(dirname);
use File::Path qw(remove_tree);
use File::Temp ();
use IO::Socket::INET;
use Socket ();
use Time::HiRes qw(sleep time);

our ($Root, $Tmp, $Shm, $Lua, $Lib, $RedisPort, $RedisPid, $Mute,
    @Held);
my $Owner = $$;
my $Blocks = 0;

# END blocks clean up, and run only where Perl ends by itself.
$SIG{$_} = sub { exit 1 } for qw(HUP INT PIPE TERM);

$Root = Cwd::abs_path(dirname(__FILE__) . '/../..');
$Lua = Cwd::abs_path($ENV{SLUICE_LUA} // "$Root/lua");
$Lib = Cwd::abs_path($ENV{SLUICE_LIB} // "$Root/target/fast");
$Tmp = File::Temp::tempdir('sluice-t-XXXXXX', TMPDIR => 1);
chmod 0755, $Tmp;
$Shm = "/dev/shm/sluice-t-$$-";

$ENV{TEST_NGINX_SLUICE_LUA} = $Lua;
$ENV{TEST_NGINX_SERVROOT} //= "$Tmp/servroot";
$ENV{TEST_NGINX_SERVER_PORT} //= free_port();
if (!defined $ENV{TEST_NGINX_LOAD_MODULES}) {
    my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
    my $dir = '/usr/lib/nginx/modules';
    if (`$nginx -V 2>&1` !~ /openresty|lua-nginx-module|ngx_lua/
        && -e "$dir/ngx_http_lua_module.so")
    {
        $ENV{TEST_NGINX_LOAD_MODULES} =
            "$dir/ndk_http_module.so $dir/ngx_http_lua_module.so";
    }
}

if (!grep { -e "$_/Test/Nginx/Socket.pm" } @INC) {
    unshift @INC, "$Root/t/runner";
}
require Test::Nginx::Socket;
Test::Nginx::Socket::master_on();
Test::Nginx::Socket::no_root_location();
Test::Nginx::Socket::log_level('info');
Test::Nginx::Socket::no_shuffle();
Test::Nginx::Socket::timeout(10);
Test::Nginx::Socket::worker_connections(1024);
&Test::Nginx::Socket::add_block_preprocessor(\&prepare);

# Runs after Test::Nginx's own END, which stops nginx: END blocks run in the
# reverse of the order in which they were compiled, and that module is loaded
# when this one runs.
END {
    if ($$ == $Owner) {
        local $?;
        stop_redis();
        unlink glob "$Shm*" if $Shm;
        remove_tree($Tmp) if $Tmp;
    }
}


# Below the range from which the kernel takes the ports of clients. The UDP
# port of the same number is held as long as we run: it keeps the other test
# processes of this machine, which ask in the same way, from the number.
sub free_port {
    for (1 .. 1000) {
        my $port = 10000 + int rand 22000;
        my $held = IO::Socket::INET->new(
            LocalAddr => '127.0.0.1', LocalPort => $port, Proto => 'udp',
        ) or next;
        IO::Socket::INET->new(
            LocalAddr => '0.0.0.0', LocalPort => $port, Listen => 1,
        ) or next;
        push @Held, $held;
        return $port;
    }
    die 'no free port';
}

# Containers may have no IPv6, not even ::1.
sub ipv6 {
    my $own = Socket::pack_sockaddr_in6(0, Socket::inet_pton(
        Socket::AF_INET6(), '::1'));
    my $socket;
    return socket($socket, Socket::PF_INET6(), Socket::SOCK_STREAM(), 0)
        && bind $socket, $own;
}

sub spill {
    my ($path, $text) = @_;
    open my $out, '>', $path or die "cannot write $path: $!";
    print $out $text;
    close $out or die "cannot write $path: $!";
    return $path;
}

# The region of the block that runs.
sub shm_path { "$Shm$Blocks" }

sub prepare {
    my $block = shift;

    unlink glob "$Shm*" if $Blocks && !defined $block->keep_shm;
    $Blocks++ if !defined $block->keep_shm;

    if (defined $block->redis) {
        start_redis();
        redis('FLUSHALL');
        redis('SCRIPT', 'FLUSH');
        for my $line (split /\n/, $block->redis) {
            next if $line !~ /\S/ || $line =~ /^\s*#/;
            my $answer = redis(redis_words($line));
            die "redis: $line: $answer" if ($answer // '') =~ /^ERR/;
        }
    }

    if (defined $block->mute) {
        # Connections end in the backlog, and hang there.
        $Mute //= IO::Socket::INET->new(LocalAddr => '127.0.0.1',
            LocalPort => 0, Listen => 1) or die "no free port: $!";
    }

    # A refusal is one line a rule a second, at level error: expected wherever
    # a case refuses, and no case's business but that of the one about it.
    my $never = $block->no_error_log;
    if (defined $never && !ref $never) {
        $block->set_value(no_error_log => [map {
            $_ ne '[error]' ? $_
                : qr/\[error\](?!.* sluice: (?:rule|pool|the lists) .* request)/
        } split /\n+/, $never]);
    }

    # The library's lines come by way of its thread, after the answer.
    $block->set_value(wait => 0.3)
        if defined $block->error_log && !defined $block->wait;

    my $config = $block->config // '';
    my $http = $block->http_config // '';
    s/\$BACKEND\b/unix:$Tmp\/backend-$Blocks.sock:/g for $config, $http;
    if (!defined $block->bare) {
        $http = our_http($block) . $http;
        $config = our_server($block, $config) . $config;
    }
    $block->set_value(http_config => $http);
    $block->set_value(config => $config);

    if (defined $block->driver) {
        $block->set_value(request => 'GET /drive')
            if !defined $block->request;
    }
}

sub expanded {
    my $text = shift;
    $text =~ s/\$MUTE_PORT\b/$Mute->sockport/ge;
    $text =~ s/\$REDIS_PORT\b/$RedisPort \/\/ die 'no section redis'/ge;
    $text =~ s/\$TMP\b/$Tmp/g;
    $text =~ s/\$ROOT\b/$Root/g;
    $text =~ s/\$TEST_NGINX_([A-Z_]+)\b(?!\d)/$ENV{"TEST_NGINX_$1"}/ge;
    return $text;
}

sub our_http {
    my $block = shift;
    my $shm = shm_path();

    my $source;
    if (defined(my $table = $block->table)) {
        $table = expanded($table);
        $source = <<"EOL";
(function()
            local conf = {
$table
            }
            conf.shm = conf.shm or { size = "8MiB" }
            conf.shm.path = conf.shm.path or "$shm"
            conf.client = conf.client or { trusted_proxies = { "127.0.0.1" } }
            return conf
        end)()
EOL
    }
    elsif (defined(my $json = $block->json)) {
        $json = expanded($json);
        $json =~ s/\$SHM\b/$shm/g;
        $source = '"' . spill("$Tmp/sluice.json", $json) . '"';
    }
    else {
        my $toml = expanded($block->toml // '');
        $toml =~ s/\$SHM\b/$shm/g;
        # Machines that run tests are busy; what a timeout does is for cases
        # that write their own.
        $toml =~ s/^\[store\]\n/[store]\ntimeout = "1s"\n/m
            if $toml =~ /^backend/m && $toml !~ /^timeout/m;
        $toml .= "\n[shm]\npath = \"$shm\"\nsize = \"8MiB\"\n"
            if $toml !~ /^\[shm\]/m;
        $toml .= "\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n"
            if $toml !~ /^\[client\]/m;
        $source = '"' . spill("$Tmp/sluice.toml", $toml) . '"';
    }

    # The same suites, with the request read through ngx.var.
    my $fallback = !$ENV{SLUICE_TEST_FALLBACK} ? '' : <<'EOL';
require("resty.sluice.nginx").expected.ngx_http_lua_ffi_var_get = "i4()"
EOL
    my %lua = map { $_ => expanded($block->$_ // '') }
        qw(before_setup after_setup before_start after_start);
    my $include = defined $block->no_include ? ''
        : "include $Root/openresty-conf/sluice.conf;";
    my $backend = !defined $block->backend ? '' : <<"EOC";
    lua_check_client_abort on;
    server {
        listen unix:$Tmp/backend-$Blocks.sock;
        lua_check_client_abort off;
        location / { content_by_lua_block { require("backend").serve() } }
    }
EOC
    return <<"EOC";
    lua_package_path "$Lua/?.lua;$Root/t/lib/lua/?.lua;;";
    lua_package_cpath "$Lib/?.so;;";
    lua_socket_log_errors off;
    $include
    init_by_lua_block {
        $fallback
        $lua{before_setup}
        require("resty.sluice").setup($source)
        $lua{after_setup}
    }
    init_worker_by_lua_block {
        $lua{before_start}
        require("resty.sluice").start()
        $lua{after_start}
    }
$backend
EOC
}

sub our_server {
    my ($block, $config) = @_;
    my $own = 'access_by_lua_block { } log_by_lua_block { }';
    my $out = '';
    if (!defined $block->no_include) {
        $out .= <<'EOC';
        add_header X-Verdict $sluice_verdict always;
        add_header X-Rule $sluice_rule always;
        add_header X-Level $sluice_level always;
        add_header X-Client $sluice_client always;
        add_header X-Wait-Ms $sluice_wait_ms always;
EOC
    }
    if (($block->hooks // '') =~ /user/) {
        $out .= <<'EOC';
        access_by_lua_block {
            require("resty.sluice").access {
                user = ngx.var.http_x_user, pool = ngx.var.http_x_pool,
            }
        }
        log_by_lua_block { require("resty.sluice").log() }
EOC
    }
    elsif (($block->hooks // '') !~ /none/) {
        $out .= <<'EOC';
        access_by_lua_block { require("resty.sluice").access() }
        log_by_lua_block { require("resty.sluice").log() }
EOC
    }
    if (defined $block->backend && $config !~ m{location\s*/b/\s*\{}) {
        $out .= <<"EOC";
        location /b/ {
            proxy_pass http://unix:$Tmp/backend-$Blocks.sock:;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_force_ranges on;
        }
EOC
    }
    if ($config !~ m{location\s*/\s*\{}) {
        $out .= <<'EOC';
        location / {
            content_by_lua_block {
                ngx.req.discard_body()
                ngx.print("ok\n")
            }
        }
EOC
    }
    $out .= <<"EOC";
        location = /metrics {
            rewrite_by_lua_block { }
            $own
            content_by_lua_block { require("resty.sluice").metrics() }
        }
        location = /status {
            rewrite_by_lua_block { }
            $own
            content_by_lua_block { require("resty.sluice").status() }
        }
EOC
    if (defined(my $driver = $block->driver)) {
        my $redis = $RedisPort // 0;
        spill("$Tmp/drive.lua", expanded($driver));
        $out .= <<"EOC";
        location = /drive {
            rewrite_by_lua_block { }
            $own
            lua_socket_connect_timeout 5s;
            lua_socket_read_timeout 10s;
            content_by_lua_block {
                require("driver").run("$Tmp/drive.lua", {
                    port = $ENV{TEST_NGINX_SERVER_PORT}, redis = $redis,
                })
            }
        }
EOC
    }
    return $out;
}


# --- Redis ----------------------------------------------------------------

sub start_redis {
    return if $RedisPid && kill 0, $RedisPid;
    $RedisPort //= free_port();
    $RedisPid = fork // die "fork: $!";
    if (!$RedisPid) {
        open STDOUT, '>', "$Tmp/redis.log";
        open STDERR, '>&', \*STDOUT;
        exec 'redis-server', '--port', $RedisPort, '--bind', '127.0.0.1',
            '--save', '', '--appendonly', 'no', '--dir', $Tmp,
            '--daemonize', 'no', '--enable-debug-command', 'yes'
            or die "redis-server: $!";
    }
    for (1 .. 200) {
        return if (eval { redis('PING') } // '') eq 'PONG';
        sleep 0.02;
    }
    die 'redis-server does not answer: ' . `cat $Tmp/redis.log`;
}

sub stop_redis {
    return if !$RedisPid;
    kill KILL => $RedisPid;
    waitpid $RedisPid, 0;
    undef $RedisPid;
}

# One line as redis-cli would split it.
sub redis_words {
    my @words;
    my $line = shift;
    while ($line =~ /\G\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+))/g) {
        if (defined $1) {
            (my $word = $1) =~ s/\\(["\\])/$1/g;
            push @words, $word;
        }
        else {
            push @words, $2 // $3;
        }
    }
    return @words;
}

# One command to the suite's Redis. Lists come back as references, errors as
# their text.
sub redis {
    my @words = @_;
    my $socket = IO::Socket::INET->new(
        PeerAddr => '127.0.0.1', PeerPort => $RedisPort, Timeout => 5,
    ) or die "redis on port $RedisPort: $!";
    my $text = '*' . @words . "\r\n";
    $text .= '$' . length($_) . "\r\n$_\r\n" for @words;
    print $socket $text;
    return redis_answer($socket);
}

sub redis_answer {
    my $socket = shift;
    my $line = <$socket> // die 'redis closed the connection';
    $line =~ s/\r\n$//;
    my ($type, $rest) = $line =~ /^(.)(.*)/s;
    if ($type eq '$') {
        return undef if $rest < 0;
        read $socket, my $bytes, $rest + 2;
        return substr $bytes, 0, $rest;
    }
    if ($type eq '*') {
        return undef if $rest < 0;
        return [map { redis_answer($socket) } 1 .. $rest];
    }
    return $rest;
}

1;
