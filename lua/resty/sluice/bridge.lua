-- How a request waits for the library's thread, and how the thread wakes it.
--
-- The thread finishes work and writes one byte to a Unix socket. A light
-- thread of this worker reads it, collects all finished tickets in one call
-- and posts their semaphores. Where that reader does not run (a worker that
-- has just started or is quitting, connections used up), waiters look
-- themselves, every few milliseconds: slower, never stuck.

local ffi = require "ffi"
local semaphore = require "ngx.semaphore"
local library = require "resty.sluice.library"


local C = library.C
local ffi_new = ffi.new
local ffi_string = ffi.string
local new_semaphore = semaphore.new
local ngx = ngx
local log = ngx.log
local now = ngx.now
local sleep = ngx.sleep
local tcp = ngx.socket.tcp
local timer_at = ngx.timer.at
local update_time = ngx.update_time
local exiting = ngx.worker.exiting


-- As many as one wake-up may bring; more are collected in further calls.
local BATCH = 256
local MESSAGE_SIZE = 2048
local POLL_S = 0.002
local RETRY_S = 1
-- Only a bound: the reader is told when to end.
local READ_TIMEOUT_MS = 3600 * 1000
-- A timer that is never due: nginx calls it early when the worker quits.
local NEVER_S = 10 * 365 * 86400


local _M = {}


local tickets = ffi_new("uint32_t[?]", BATCH)
local message = ffi_new("char[?]", MESSAGE_SIZE)
local level = ffi_new("int32_t[1]")
local connected = false
local last_try = 0
local waiting = {}
local pool = {}


-- Posts whoever is finished and writes what the thread has to say.
local function collect()
    local n
    repeat
        n = C.sluice_finished(tickets, BATCH)
        for i = 0, n - 1 do
            local sem = waiting[tickets[i]]
            if sem then
                sem:post(1)
            end
        end
    until n < BATCH

    while true do
        local len = C.sluice_message(message, MESSAGE_SIZE, level)
        if len < 0 then
            return
        end
        log(level[0], ffi_string(message, len))
    end
end


local start_reader


local function reader(premature)
    if premature then
        return
    end

    local n = C.sluice_bridge_path(message, MESSAGE_SIZE)
    if n < 0 then
        return
    end

    local sock = tcp()
    sock:settimeouts(1000, 1000, READ_TIMEOUT_MS)

    local ok, err = sock:connect("unix:" .. ffi_string(message, n))
    if not ok then
        -- The thread may not listen yet; waiters look themselves meanwhile.
        log(ngx.INFO, "sluice: the bridge is not up yet: ", err)
        if not exiting() then
            timer_at(0.05, reader)
        end
        return
    end

    connected = true
    collect()

    while true do
        local data
        data, err = sock:receiveany(BATCH)
        if data then
            collect()

        elseif err ~= "timeout" then
            break
        end
    end

    connected = false
    sock:close()
    collect()

    -- Whoever waits for a wake-up that now cannot come looks itself.
    for _, sem in pairs(waiting) do
        sem:post(1)
    end

    if not exiting() then
        start_reader()
    end
end


function start_reader()
    last_try = now()
    local ok, err = timer_at(0, reader)
    if not ok and err ~= "process exiting" then
        log(ngx.WARN, "sluice: cannot start the bridge: ", err)
    end
end


local function on_quit(premature)
    if premature then
        C.sluice_quit()
    end
end


function _M.start()
    start_reader()

    local ok, err = timer_at(NEVER_S, on_quit)
    if not ok then
        log(ngx.WARN, "sluice: cannot arm the timer that tells of a worker's ",
            "end: ", err)
    end
end


-- Waits until ask(timed_out) answers something other than `wait_action`, for
-- at most `seconds`; then ask is called once more with timed_out = 1, which
-- settles the matter. While it answers `wait_action`, its second result says
-- for how long from now: another wait may follow the first. A post may be
-- meant for the last wait of a reused semaphore, so after every wait it is
-- asked by ticket and generation. Returns ask's first and third result.
function _M.wait(ticket, seconds, wait_action, ask, a, b, c)
    if not connected and now() - last_try > RETRY_S and not exiting() then
        start_reader()
    end

    local sem = pool[#pool]
    if sem then
        pool[#pool] = nil
    else
        sem = new_semaphore(0)
    end

    if sem then
        waiting[ticket] = sem
    end

    local action, more

    while true do
        local timed_out = 0
        -- A wait is cut to whole milliseconds: one of less ends at once, the
        -- clock does not move, and this loop would never yield again.
        if seconds < 0.001 then
            timed_out = 1

        elseif connected and sem then
            sem:wait(seconds)

        else
            sleep(seconds < POLL_S and seconds or POLL_S)
            update_time()
            collect()
        end

        action, seconds, more = ask(timed_out, a, b, c)
        if action ~= wait_action then
            break
        end
    end

    if sem then
        waiting[ticket] = nil
        pool[#pool + 1] = sem
    end

    return action, more
end


return _M
