# What happens on a host. `sh -s` reads this from its standard input, after lines that set
#   action (start, stop, kill, status, logs, check), cluster, name, bin, token, profile, ready, tokens, lines,
# and the command as $1, $2, ... So nothing of it is in anybody's arguments, where other users of the machine could read the token.
# Answers are lines `::bbgrap KEY=VALUE`; after `::bbgrap log` comes the end of the process's log.
# Laws: every action may be repeated; a process id counts only together with the time at which its process began.
set -u
umask 077

say() { printf '::bbgrap %s=%s\n' "$1" "$2"; }

fail() {
    say error "$1"
    exit 1
}

began() { # when a process began; nothing if it is gone, or only its parent has not noticed yet
    if [ -r /proc/self/stat ]; then
        sed -n 's/^.*) \([^ZX] .*\)$/\1/p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
    else
        ps -o lstart= -p "$1" 2>/dev/null | tr -d ' '
    fi
}

alive() { # whether the process that was started runs; sets pid
    pid='' since=''
    [ -r "$folder/$name.pid" ] && read -r pid since <"$folder/$name.pid"
    [ -n "$pid" ] && [ -n "$since" ] && [ "$(began "$pid")" = "$since" ]
}

await() { # try a condition every tenth of a second, at most so many times
    tries=$1
    shift
    while ! "$@"; do
        [ "$tries" -gt 0 ] || return 1
        tries=$((tries - 1))
        sleep 0.1
    done
}

gone() { ! alive; }

alone() { # nobody else starts or stops this process until `released`, or this shell's end; without `flock`, as on macOS, nobody waits
    command exec 9>"$folder/$name.lock" || return 0 # on a full disk things can be stopped, too
    if command -v flock >/dev/null; then flock 9; fi
}

released() { exec 9>&-; }

asked() { printf '%s\n' "$bin" "$@" "$profile"; } # all that decides how the process runs, but the token

is_ready() { [ -s "$folder/$name.ready" ] || gone; }

has() { # whether a command is there to be started; of another installation on the PATH nobody speaks who names a folder
    if [ -n "$bin" ]; then [ -x "$bin/$1" ]; else command -v "$1" >/dev/null; fi
}

start() {
    has "$1" || fail "there is no '$1' in ${bin:-its PATH}; install bbgrap there, or say with 'bin' where it is"
    if [ -n "$profile" ]; then printf '%s\n' "$profile" >"$folder/$name.profile.yaml"; fi
    rm -f "$folder/$name.ready"
    # A megabyte of log is enough to see what was; it is not what fills a disk. While it runs, the process sees to that itself.
    if [ -f "$folder/$name.log" ] && [ "$(wc -c <"$folder/$name.log")" -gt 1048576 ]; then mv "$folder/$name.log" "$folder/$name.log.1"; fi
    if [ -n "$token" ]; then export BBGRAP_TOKEN="$token" && unset BBGRAP_TOKEN_FILE BBGRAP_INSECURE; fi
    # In a session of its own it outlives this connection.
    BBGRAP_LOG_FILE="$folder/$name.log" "$(command -v setsid || command -v nohup)" "$@" </dev/null >>"$folder/$name.log" 2>&1 9>&- &
    if ! printf '%s %s\n' "$!" "$(began "$!")" >"$folder/$name.pid"; then # nobody would find it again
        kill -KILL "$!"
        rm -f "$folder/$name.pid"
        fail "the folder '$folder' takes no file; is its disk full? Make room there"
    fi
    asked "$@" >"$folder/$name.asked"
}

stop() {
    kill -TERM "$pid"
    await 100 gone || kill -KILL "$pid"
    await 50 gone || fail "process $pid does not end"
    kill -KILL "-$pid" 2>/dev/null # whatever it has left of its session
    rm -f "$folder/$name.pid"
}

report() {
    if alive; then
        say pid "$pid"
        if [ -r "$folder/$name.asked" ] && [ "$(asked "$@")" != "$(cat "$folder/$name.asked")" ]; then say changed 1; fi
        if [ -n "$tokens" ]; then
            for kind in local join; do say "$kind" "$(cat "$folder/$name.state/keys/$kind.token" 2>/dev/null)"; done
        fi
    elif [ -e "$folder/$name.pid" ]; then
        say ended 1
    fi
    if [ -r "$folder/$name.log" ]; then
        echo '::bbgrap log'
        tail -n "$lines" "$folder/$name.log"
    fi
}

main() {
    folder=${XDG_STATE_HOME:-$HOME/.local/state}/bbgrap/$cluster
    case $bin in "~/"*) bin=$HOME/${bin#"~/"} ;; esac
    if [ -n "$bin" ]; then export PATH="$bin:$PATH"; fi
    mkdir -p "$folder" && [ -w "$folder" ] || fail "the folder '$folder' cannot be written"
    cd "$folder" || fail "the folder '$folder' cannot be entered"
    case $action in
    start)
        alone
        if ! alive; then
            start "$@"
            say started 1
        fi
        released
        if [ -n "$ready" ]; then await 600 is_ready; fi
        report "$@"
        ;;
    stop)
        alone
        if alive; then
            stop
            say stopped 1
        fi
        released
        ;;
    kill)
        alive || fail "it does not run"
        kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid"
        await 50 gone || fail "process $pid does not end"
        ;;
    status) report "$@" ;;
    check)
        has "$1" || fail "there is no '$1' in ${bin:-its PATH}; install bbgrap there, or say with 'bin' where it is"
        say version "$(bbgrap --version 2>&1 | tail -n 1)"
        say cores "$(getconf _NPROCESSORS_ONLN 2>/dev/null)"
        report "$@"
        ;;
    logs)
        [ -r "$folder/$name.log" ] || fail "there is no log yet"
        tail -n "$lines" -f "$folder/$name.log" &
        cat >/dev/null # until whoever looks goes away
        kill "$!"
        ;;
    esac
}
