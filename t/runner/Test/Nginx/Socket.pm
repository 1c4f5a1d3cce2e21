# A stand-in for Test::Nginx::Socket where that is not installed: the part of
# its block format that the suites beside it use, on Debian's
# libtest-base-perl. t/lib/SluiceTest.pm puts this folder on the path only when
# the real module is not there; a suite must pass under both.
#
# Blocks run in file order. Sections: main_config, http_config, config, init,
# user_files, request (text, list, list of packets), pipelined_requests,
# raw_request, more_headers, error_code(_like), response_headers(_like),
# raw_response_headers_(un)like, response_body(_(un)like), (no_)error_log,
# (no_)access_log, grep_error_log(_out), timeout, wait, abort, shutdown,
# ignore_response, log_level, must_die, skip_nginx, skip_eval.
package Test::Nginx::Socket;

use strict;
use warnings;

use Test::Base -base;

use Cwd ();
use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use File::Path qw(make_path remove_tree);
use IO::Select;
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use Time::HiRes qw(sleep time);

our $VERSION = '0.1';

our @EXPORT = qw(
    plan run_tests repeat_each add_block_preprocessor add_cleanup_handler
    add_test_cleanup_handler bail_out check_accum_error_log env_to_nginx
    html_dir log_level master_off master_on master_process_enabled
    no_long_string no_root_location no_shuffle server_addr server_name
    server_port server_root timeout worker_connections workers
);

my %Set = (
    addr         => '127.0.0.1',
    binary       => $ENV{TEST_NGINX_BINARY} || 'nginx',
    connections  => 64,
    level        => $ENV{TEST_NGINX_LOG_LEVEL} || 'debug',
    master       => 'off',
    modules      => $ENV{TEST_NGINX_LOAD_MODULES},
    name         => 'localhost',
    port         => $ENV{TEST_NGINX_SERVER_PORT} || $ENV{TEST_NGINX_PORT}
                    || 1984,
    repeat       => 1,
    root         => $ENV{TEST_NGINX_SERVROOT} || Cwd::cwd() . '/t/servroot',
    timeout      => $ENV{TEST_NGINX_TIMEOUT} || 3,
    workers      => 1,
);
$ENV{TEST_NGINX_SERVER_ROOT} = $Set{root};
$ENV{TEST_NGINX_SERVER_PORT} //= $Set{port};

my (@Preprocessors, @AtEnd, @AfterBlock, @Env);
my ($AccumulateLog, $NoRootLocation, $Version, $Pid, $LogRead, %RandomPorts);
my $Owner = $$;


sub setting ($;$) {
    my ($key, $value) = @_;
    $Set{$key} = $value if defined $value;
    return $Set{$key};
}

sub log_level { setting 'level', shift }
sub repeat_each { setting 'repeat', shift }
sub server_addr { setting 'addr', shift }
sub server_name { setting 'name', shift }
sub server_port { setting 'port', shift }
sub timeout { setting 'timeout', shift }
sub worker_connections { setting 'connections', shift }
sub workers { setting 'workers', shift }
sub server_root { $Set{root} }
sub html_dir { "$Set{root}/html" }
sub master_on { $Set{master} = 'on' }
sub master_off { $Set{master} = 'off' }
sub master_process_enabled { $Set{master} = $_[0] ? 'on' : 'off' }
sub check_accum_error_log { $AccumulateLog = 1 }
sub no_root_location { $NoRootLocation = 1 }
sub no_shuffle { }
sub no_long_string { }
sub env_to_nginx { push @Env, @_ }
sub add_block_preprocessor (&) { unshift @Preprocessors, shift }
sub add_cleanup_handler { unshift @AtEnd, shift }
sub add_test_cleanup_handler { unshift @AfterBlock, shift }

sub bail_out {
    stop();
    Test::More::BAIL_OUT(join '', @_);
}


sub run_tests {
    $Version = nginx_version();
    for my $block (blocks()) {
        $_->($block) for @Preprocessors;
        $block->set_value(name => "$0 " . $block->name);
        run_block($block);
        $_->($block) for @AfterBlock;
    }
    stop();
    $_->() for @AtEnd;
}

sub nginx_version {
    my $text = `$Set{binary} -V 2>&1`;
    $text =~ m{(?:nginx|openresty)[^/]*/(\d+)\.(\d+)\.(\d+)}
        or bail_out("cannot read the version of $Set{binary}: $text");
    return sprintf '%d.%03d%03d', $1, $2, $3;
}

# "3: < 1.21.4: reason" and "3: perl expression": how many to skip, and why.
sub skipped {
    my $block = shift;
    if (defined(my $spec = $block->skip_nginx)) {
        $spec =~ /^\s*(\d+)\s*:\s*([<>]=?)\s*(\d+)\.(\d+)\.(\d+)(?:\s*:\s*(.*?))?\s*$/
            or bail_out($block->name . " - bad skip_nginx: $spec");
        my $bound = sprintf '%d.%03d%03d', $3, $4, $5;
        my %is = ('<' => $Version < $bound, '>' => $Version > $bound,
                  '<=' => $Version <= $bound, '>=' => $Version >= $bound);
        return ($1, $6 || "nginx $2 $3.$4.$5") if $is{$2};
    }
    if (defined(my $spec = $block->skip_eval)) {
        my ($count, $code) = $spec =~ /^\s*(\d+)\s*:\s*(.*)/s
            or bail_out($block->name . " - bad skip_eval: $spec");
        my $skip = eval $code;
        bail_out($block->name . " - skip_eval: $@") if $@;
        return ($count, 'skip_eval') if $skip;
    }
    return;
}

sub run_block {
    my $block = shift;
    my $name = $block->name;

    my ($count, $reason) = skipped($block);
    if ($count) {
        SKIP: { Test::More::skip("$name - $reason", $count) }
        return;
    }

    %RandomPorts = ();
    stop();
    lay_out($block);

    my $command = "$Set{binary} -e $Set{root}/logs/error.log -p $Set{root}/ "
        . "-c $Set{root}/conf/nginx.conf >/dev/null 2>$Set{root}/logs/stderr";
    $LogRead = 0;
    my $status = system $command;

    if (defined $block->must_die) {
        Test::More::isnt($status, 0, "$name - die as expected");
        check_logs($block, 0);
        wait_for_pid() if $status == 0;
        return;
    }

    if ($status != 0) {
        bail_out("$name - nginx does not start:\n" . slurp('logs/stderr')
            . slurp('logs/error.log'));
    }
    wait_for_pid();

    if (defined $block->init) {
        eval $block->init;
        bail_out("$name - init failed: $@") if $@;
    }
    for my $round (0 .. $Set{repeat} - 1) {
        run_requests($block, $round);
    }
}

sub wait_for_pid {
    for (1 .. 200) {
        if (slurp('logs/nginx.pid') =~ /(\d+)\n/) {
            $Pid = $1;
            return;
        }
        sleep 0.02;
    }
    bail_out('no pid file from nginx');
}

# Quits gracefully, as a site would, and says so when that takes too long.
sub stop {
    return if !$Pid || $$ != $Owner;
    my $pid = $Pid;
    undef $Pid;
    kill QUIT => $pid;
    my $until = time + $Set{timeout};
    while (alive($pid)) {
        if (time > $until) {
            warn "nginx $pid does not quit within $Set{timeout} s, killed\n";
            kill KILL => $pid, children($pid);
            last;
        }
        sleep 0.02;
    }
}

# A zombie has ended: who reaps it, and when, is not nginx's business.
sub alive {
    open my $in, '<', "/proc/$_[0]/stat" or return 0;
    return (<$in> // '') =~ /\) [^ZX]/;
}

sub children {
    my $parent = shift;
    my @found;
    for my $file (glob '/proc/[0-9]*/stat') {
        open my $in, '<', $file or next;
        my $stat = <$in> // '';
        push @found, $1 if $stat =~ /^(\d+) \(.*\) \S (\d+)/ && $2 == $parent;
    }
    return @found;
}

END {
    local $?;
    stop();
}


sub slurp {
    my $path = "$Set{root}/" . shift;
    open my $in, '<', $path or return '';
    local $/;
    return scalar <$in> // '';
}

sub spill {
    my ($path, $text) = @_;
    $path = "$Set{root}/$path" if $path !~ m{^/};
    my ($folder) = $path =~ m{^(.*)/};
    make_path($folder);
    open my $out, '>', $path or bail_out("cannot write $path: $!");
    binmode $out;
    print $out $text;
    close $out;
}

sub expand {
    my $text = shift;
    return '' if !defined $text;
    $text =~ s{\$(TEST_NGINX_[A-Z0-9_]+)}{
        my $key = $1;
        $key =~ /^TEST_NGINX_RAND_PORT_\d+$/
            ? ($RandomPorts{$key} //= free_port())
            : ($ENV{$key} // bail_out("no environment variable $key"))
    }ge;
    return $text;
}

sub free_port {
    for (1 .. 1000) {
        my $port = 10000 + int rand 22000;
        next if grep { $_ == $port } values %RandomPorts;
        return $port if IO::Socket::INET->new(
            LocalAddr => '0.0.0.0', LocalPort => $port, Listen => 1,
        );
    }
    bail_out('no free port');
}

sub lay_out {
    my $block = shift;
    my $root = $Set{root};

    remove_tree($root);
    make_path("$root/$_") for qw(conf logs html);
    spill('html/index.html', 'It works!');

    my $files = $block->user_files;
    if (defined $files) {
        if (!ref $files) {
            my (undef, @parts) = split /^>>> +(\S+).*\n/m, $files;
            $files = [];
            push @$files, [splice @parts, 0, 2] while @parts;
        }
        for my $file (@$files) {
            my ($path, $text) = @$file;
            spill($path =~ m{^/} ? $path : "html/$path", expand($text));
        }
    }

    my $modules = join '', map { "load_module $_;\n" }
        split ' ', $Set{modules} // '';
    my $env = join '', map { "env $_;\n" } @Env;
    my $level = $block->log_level || $Set{level};
    my $user = $> == 0 ? 'user root;' : '';
    my $main = expand(scalar $block->main_config);
    my $http = expand(scalar $block->http_config);
    my $config = expand(scalar $block->config);
    my $slash = $NoRootLocation ? ''
        : "location / { root $root/html; index index.html; }";
    my $temp = join ' ', map { "${_}_temp_path $root/${_}_temp;" }
        qw(client_body proxy fastcgi uwsgi scgi);

    spill('conf/nginx.conf', <<"EOC");
worker_processes $Set{workers};
daemon on;
master_process $Set{master};
error_log $root/logs/error.log $level;
pid $root/logs/nginx.pid;
$env
$modules
$main
$user
events {
    accept_mutex off;
    worker_connections $Set{connections};
}
http {
    access_log $root/logs/access.log;
    $temp
    default_type text/plain;
    keepalive_timeout 68s;

$http

    server {
        listen $Set{port};
        server_name '$Set{name}';
        client_max_body_size 30M;

$config

        $slash
    }
}
EOC
}


# --- requests -------------------------------------------------------------

# A list of requests, each a list of { value, delay_before }, and how many
# answers the first of them brings when they are pipelined.
sub requests {
    my $block = shift;
    my $name = $block->name;

    if (defined(my $raw = $block->raw_request)) {
        return [map { { value => $_ } } ref $raw ? @$raw : $raw];
    }

    my $headers_of = sub {
        my $more = $block->more_headers // '';
        return $more if !ref $more;
        return $more->[$_[0]] // bail_out("$name - more_headers lacks $_[0]");
    };

    if (defined(my $piped = $block->pipelined_requests)) {
        my $text = '';
        for my $i (0 .. $#$piped) {
            $text .= request_text($block, expand($piped->[$i]),
                $headers_of->($i), $i < $#$piped ? 'keep-alive' : 'close');
        }
        return [{ value => $text, answers => scalar @$piped }];
    }

    my $request = $block->request // bail_out("$name - request empty");
    my @requests = ref $request ? @$request : $request;
    my @ready;
    for my $i (0 .. $#requests) {
        my $one = $requests[$i];
        if (!ref $one) {
            $one =~ s/^(?:\s*#[^\n]*\n|\s+)+//;
            push @ready, [{ value => request_text($block, $one,
                $headers_of->($i), 'close') }];
            next;
        }
        # Packets: the head is built from the first, the body sent as given.
        my @packets = map { ref $_ ? { %$_ } : { value => $_ } } @$one;
        my $whole = join '', map { $_->{value} } @packets;
        my $first = shift @packets;
        my ($line, $rest) = $first->{value} =~ /^([^\n]*\n?)(.*)/s;
        (my $body = $whole) =~ s/^[^\n]*\n?//;
        my $head = request_text($block, "$line$body", $headers_of->($i),
            'close');
        $head =~ s/(\r\n\r\n).*/$1/s;
        push @ready, [{ %$first, value => "$head$rest" }, @packets];
    }
    return @ready;
}

# "POST /path\nbody" and header lines to what goes over the wire.
sub request_text {
    my ($block, $text, $more, $connection) = @_;
    my ($line, $body) = $text =~ /^([^\n]*)\n?(.*)/s;
    my ($method, $uri, $version) = split ' ', $line;
    bail_out($block->name . ' - no request line') if !defined $method;
    $uri //= '/';
    $version //= 'HTTP/1.1';

    my @lines = grep { !/^\s*#/ && /\S/ } split /\r?\n/, $more;
    my $has = sub { my $key = shift; grep { /^$key\s*:/i } @lines };
    my $chunked = grep { /^transfer-encoding\s*:\s*chunked/i } @lines;
    if (!$chunked && !$has->('content-length')) {
        $body =~ s/^\s+|\s+$//g;
        push @lines, 'Content-Length: ' . length $body if length $body;
    }
    unshift @lines, "Connection: $connection" if !$has->('connection');
    unshift @lines, "Host: $Set{name}" if !$has->('host');
    return join("\r\n", "$method $uri $version", @lines, '', '') . $body;
}

sub exchange {
    my ($block, $packets) = @_;
    my $name = $block->name;
    my $limit = $block->timeout;
    $limit = !defined $limit ? $Set{timeout}
        : $limit =~ /^([\d.]+)ms$/ ? $1 / 1000
        : $limit =~ /^([\d.]+)s?\s*$/ ? $1
        : bail_out("$name - bad timeout: $limit");

    my $socket;
    for (1 .. 50) {
        $socket = IO::Socket::INET->new(
            PeerAddr => $Set{addr}, PeerPort => $Set{port}, Timeout => $limit,
        ) and last;
        sleep 0.05;
    }
    if (!$socket) {
        Test::More::fail("$name - cannot connect to port $Set{port}: $!");
        return '';
    }
    $socket->blocking(0);

    my $select = IO::Select->new($socket);
    local $SIG{PIPE} = 'IGNORE';
    my $answer = '';
    my @left = @$packets;
    my $sending = (shift @left)->{value};
    my $quiet_since = time;

    while (1) {
        if (length $sending) {
            my $sent = syswrite $socket, $sending;
            if (defined $sent) {
                substr $sending, 0, $sent, '';
                $quiet_since = time;
            }
            elsif ($! != EAGAIN && $! != EWOULDBLOCK && $! != EINTR) {
                # Closed by the other side: what it said is still readable.
                $sending = '';
                @left = ();
            }
        }
        elsif (@left) {
            my $next = shift @left;
            sleep $next->{delay_before} if $next->{delay_before};
            $sending = $next->{value};
            next;
        }
        elsif (defined $block->shutdown && $socket->opened && !$block->{_shut}++) {
            shutdown $socket, $block->shutdown =~ /(\d)/ ? $1 : 1;
        }

        if ($select->can_read(length $sending ? 0.01 : 0.1)) {
            my $got = sysread $socket, my $buffer, 65536;
            if (defined $got) {
                last if $got == 0;
                $answer .= $buffer;
                $quiet_since = time;
                next;
            }
            next if $! == EAGAIN || $! == EINTR;
            last;
        }
        if (time - $quiet_since > $limit) {
            Test::More::fail("ERROR: client socket timed out - $name")
                if !defined $block->abort;
            last;
        }
    }
    close $socket;
    return $answer;
}

# One answer off the front of `$$text`.
sub take_answer {
    my ($name, $text, $method) = @_;
    my %answer = (code => '', raw => '', headers => {}, body => undef);
    $$text =~ s/^(HTTP\/\S+ (\d+).*?\r\n)\r\n//s or return \%answer;
    @answer{qw(raw code)} = ($1, $2);
    for (split /\r\n/, $answer{raw}) {
        next if !/^([^:\s]+):\s*(.*?)\s*$/;
        push @{$answer{headers}{lc $1}}, $2;
    }
    my $length = $answer{headers}{'content-length'};
    my $coding = $answer{headers}{'transfer-encoding'};
    if ($answer{code} =~ /^1/ || $answer{code} =~ /^(?:204|304)$/
        || $method eq 'HEAD')
    {
        $answer{body} = $method eq 'HEAD' ? $$text : '';
        $$text = '' if $method eq 'HEAD';
    }
    elsif ($coding && lc $coding->[0] eq 'chunked') {
        my $body = '';
        while ($$text =~ s/^[ \t]*([0-9A-Fa-f]+)[ \t]*\r\n//) {
            my $size = hex $1;
            if (length $$text < $size + 2) {
                Test::More::fail("$name - chunked body cut short");
                last;
            }
            $body .= substr $$text, 0, $size, '';
            substr $$text, 0, 2, '';
            last if !$size;
        }
        $answer{body} = $body;
    }
    elsif ($length) {
        warn "$name - body truncated\n" if length $$text < $length->[0];
        $answer{body} = substr $$text, 0, $length->[0], '';
    }
    else {
        $answer{body} = $$text;
        $$text = '';
    }
    return \%answer;
}

sub run_requests {
    my ($block, $round) = @_;
    my $name = $block->name;
    my @requests = requests($block);
    my $total = $requests[0][0]{answers} // @requests;
    my $index = 0;

    for my $packets (@requests) {
        my $whole = join '', map { $_->{value} } @$packets;
        my ($method) = $whole =~ /^\s*(\S+)/;
        my $text = exchange($block, $packets);
        for (1 .. $packets->[0]{answers} // 1) {
            if (!defined $block->ignore_response) {
                my $answer = take_answer($name, \$text, $method);
                my $want = sub { indexed($name, shift, $index, $total > 1) };
                check_answer($block, $answer, $want);
            }
            $index++;
            next if $index == $total;
            sleep $block->wait if $block->wait;
            check_logs($block, $round);
        }
    }
    sleep $block->wait if $block->wait;
    check_logs($block, $round);
}


# --- checks ---------------------------------------------------------------

sub indexed {
    my ($name, $value, $index, $many) = @_;
    return ref $value eq 'ARRAY' ? $value->[$index] : $value if !$many;
    return $value->[$index] if ref $value eq 'ARRAY';
    bail_out("$name - many requests need lists of what to expect");
}

sub header_lines {
    my %lines;
    for (split /\n/, shift) {
        s/^\s+|\s+$//g;
        next if !length;
        if (s/^!\s*//) {
            $lines{$_} = undef;
        }
        else {
            my ($key, $value) = split /\s*:\s*/, $_, 2;
            $lines{$key} = $value;
        }
    }
    return %lines;
}

sub check_answer {
    my ($block, $answer, $want) = @_;
    my $name = $block->name;

    if (defined $block->error_code_like) {
        my $pattern = $want->($block->error_code_like);
        Test::More::like($answer->{code}, qr/$pattern/sm, "$name - status");
    }
    else {
        my $code = defined $block->error_code ? $want->($block->error_code)
            : 200;
        Test::More::is($answer->{code}, $code, "$name - status");
    }

    if (defined $block->raw_response_headers_like) {
        my $pattern = $want->($block->raw_response_headers_like);
        Test::More::like($answer->{raw}, qr/$pattern/s,
            "$name - raw headers like");
    }
    if (defined $block->raw_response_headers_unlike) {
        my $pattern = $want->($block->raw_response_headers_unlike);
        Test::More::unlike($answer->{raw}, qr/$pattern/s,
            "$name - raw headers unlike");
    }

    my $field = sub {
        my $all = $answer->{headers}{lc shift};
        return $all ? join ', ', @$all : '';
    };
    if (defined $block->response_headers) {
        my %lines = header_lines($want->($block->response_headers));
        for my $key (sort keys %lines) {
            if (defined $lines{$key}) {
                Test::More::is($field->($key), $lines{$key},
                    "$name - header $key");
            }
            else {
                Test::More::unlike($answer->{raw}, qr/^\s*\Q$key\E\s*:/mi,
                    "$name - header $key absent");
            }
        }
    }
    elsif (defined $block->response_headers_like) {
        my %lines = header_lines($want->($block->response_headers_like));
        for my $key (sort keys %lines) {
            Test::More::like($field->($key), qr/^$lines{$key}$/,
                "$name - header $key like");
        }
    }

    if (defined $block->response_body) {
        my $expected = $want->($block->response_body);
        if (ref $expected) {
            Test::More::like($answer->{body}, $expected, "$name - body");
        }
        else {
            is($answer->{body}, expand($expected), "$name - body");
        }
    }
    elsif (defined $block->response_body_like) {
        my $pattern = $want->($block->response_body_like);
        Test::More::like($answer->{body}, qr/$pattern/s, "$name - body like");
    }
    elsif (defined $block->response_body_unlike) {
        my $pattern = $want->($block->response_body_unlike);
        Test::More::unlike($answer->{body}, qr/$pattern/s,
            "$name - body unlike");
    }
}

sub patterns {
    my $given = shift;
    return if !defined $given;
    return ref $given eq 'ARRAY' ? @$given : $given if ref $given;
    chomp $given;
    return split /\n+/, $given;
}

sub matches {
    my ($line, $pattern) = @_;
    return ref $pattern ? $line =~ $pattern : index($line, $pattern) >= 0;
}

sub log_lines {
    my $file = shift;
    # The log phase comes after the answer has been sent.
    sleep 0.045;
    open my $in, '<', "$Set{root}/logs/$file" or return;
    my $seek = $file eq 'error.log' && !$AccumulateLog;
    seek $in, $LogRead, 0 if $seek;
    my @lines = <$in>;
    $LogRead = tell $in if $seek;
    return @lines;
}

sub check_patterns {
    my ($name, $kind, $lines, $wanted, $unwanted) = @_;
    for my $pattern (patterns($wanted)) {
        next if !defined $pattern;
        Test::More::ok((grep { matches($_, $pattern) } @$lines) > 0,
            "$name - \"$pattern\" in $kind");
    }
    for my $pattern (patterns($unwanted)) {
        next if !defined $pattern;
        my ($hit) = grep { matches($_, $pattern) } @$lines;
        Test::More::ok(!defined $hit, "$name - no \"$pattern\" in $kind")
            or Test::More::diag($hit);
    }
}

sub check_logs {
    my ($block, $round) = @_;
    my $name = $block->name;
    my @lines = log_lines('error.log');

    if (defined(my $pattern = $block->grep_error_log)) {
        my $found = '';
        for my $line (@lines) {
            my $quoted = ref $pattern ? $pattern : quotemeta $pattern;
            $found .= "$&\n" if $line =~ /$quoted/ && $& !~ /\n/;
        }
        my $expected = $block->grep_error_log_out;
        $expected = $expected->[$round] if ref $expected eq 'ARRAY';
        if (ref $expected) {
            Test::More::like($found, $expected, "$name - grep_error_log");
        }
        else {
            is($found, expand($expected), "$name - grep_error_log");
        }
    }
    check_patterns($name, 'error.log', \@lines,
        scalar $block->error_log, scalar $block->no_error_log);
    for my $line (@lines) {
        warn "$name - $line" if $line =~ /\[(?:alert|crit|emerg)\]/
            && !grep { matches($line, $_) } patterns(scalar $block->error_log);
        Test::More::fail("$name - $line")
            if $line =~ /\bAssertion .*failed\b|exited on signal/;
    }
    if (defined $block->access_log || defined $block->no_access_log) {
        my @access = log_lines('access.log');
        check_patterns($name, 'access.log', \@access,
            scalar $block->access_log, scalar $block->no_access_log);
    }
}

1;
