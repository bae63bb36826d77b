--[[
What every function stands on: the prefix, server time, checked arguments, the queue's meta record and counters that
are added up during a call and written once at its end. Nothing here survives the call.
--]]
local call -- redis.call, which exists only while a function runs; begin() sets it.
local MAJOR = 1
local DAY_MS = 86400000
local SPAN = 1099511627776 -- 2^40: steps lie below it; place = session ordinal * SPAN + step.
local STATES = { 'queued', 'delayed', 'running', 'done', 'dead', 'skipped', 'cancelled' }
local OPEN = { queued = true, delayed = true, running = true }
local ENDED = { done = true, dead = true, skipped = true, cancelled = true }

-- Defaults; a field of the same name in `P meta` takes its place.
local DEFAULTS = {
    lease_ms = 15000,
    heartbeat_ms = 3000,
    attempts_max = 3,
    incomplete_max = 100,
    retain_ms = 7 * DAY_MS,
    retain_dead_ms = 30 * DAY_MS,
    retain_count = 100000,
    flow_retain_ms = 90 * DAY_MS,
    results_max = 1000000,
    sink_silent_ms = 7 * DAY_MS,
}
local LEASE_MS_MAX = 3600000
local DELAY_MS_MAX = 30 * DAY_MS
local BACKOFF_MS_MAX = 600000
local CLASSES_MAX = 64
local SLICE = 100
local FEW = 8

local P, NOW, SEED = '', 0, ''
local NOW_TEXT = '0' -- The same as text: cheaper to hand to Redis.
local META, BUMPS, RUNS, RUN_BUMPS, LEASES = { changed = {} }, {}, {}, {}, {}
local FLOWS, CLASSES = {}, {} -- What submits of one call read, for those that come after in it.

-- The library's parts, each filled by its file: Q the queue's own, J jobs, F flows and fairness, L leases and sweeps,
-- R results and sinks, V what the verbs share with one another, W what views share.
local Q, J, F, L, R, V, W = {}, {}, {}, {}, {}, {}, {}

-- Decimal text of an integer: Lua's own conversion keeps 14 digits only, and Redis's of numbers is slow.
local function text_of(number)
    return string.format('%d', number)
end

local function refuse(reason)
    error({ err = 'EVQ_INVALID ' .. reason }, 0)
end

local function integer_of(text, low, high)
    if type(text) ~= 'string' or #text > 17 or not text:find('^-?%d+$') then
        return nil
    end
    local number = tonumber(text)
    if number < low or number > high then
        return nil
    end
    return number
end

local function integer_arg(args, at, low, high, what)
    local number = integer_of(args[at], low, high)
    if not number then
        refuse(what .. ' must be an integer from ' .. text_of(low) .. ' to ' .. text_of(high) .. ', got \'' ..
            tostring(args[at] or ''):sub(1, 40) .. '\'')
    end
    return number
end

local function name_ok(text, bytes_max)
    return type(text) == 'string' and #text >= 1 and #text <= bytes_max and not text:find('[^%w._-]')
end

-- Workers, requests, metrics: printable, no blanks.
local function label_ok(text, bytes_max)
    return type(text) == 'string' and #text >= 1 and #text <= bytes_max and not text:find('[%z\1-\32\127]')
end

local function label_arg(args, at, bytes_max, what)
    if not label_ok(args[at], bytes_max) then
        refuse(what .. ' must be 1 to ' .. bytes_max .. ' printable bytes without blanks')
    end
    return args[at]
end

local function args_exactly(args, count, names)
    if #args ~= count then
        refuse('expected ' .. count .. ' arguments (' .. names .. '), got ' .. #args)
    end
end

-- At most 64 bytes of one printable line, so that a hash that holds it stays compact.
local function short_text(text)
    return (tostring(text or ''):gsub('[%z\1-\31\127]', ' '):sub(1, 64))
end

--[[
Fields of `P meta`, each read when first asked for: numbers, save the epoch. META.changed is written back once, at the end
of the call.
--]]
local META_INDEX = {
    __index = function(meta, field)
        local text = call('HGET', P .. 'meta', field)
        local value = text or ''
        if field ~= 'epoch' then
            value = tonumber(text) or DEFAULTS[field] or 0
        end
        rawset(meta, field, value)
        return value
    end,
}

function Q.meta()
    return META
end

-- What a verb of each kind will want of it, read in one go.
local META_FIELDS = {
    grow = { 'epoch' },
    drain = { 'epoch', 'suites_limited' },
    claim = { 'epoch', 'suites_limited', 'paused', 'served', 'token', 'classes_version', 'clock:0', 'clock:1', 'clock:2',
        'clock:3', 'idle_until' },
}

function Q.meta_set(field, value)
    rawset(META, field, value)
    META.changed[field] = value
end

-- Counters of `P n`, added up and written at the end of the call.
function Q.bump(field, delta)
    BUMPS[field] = (BUMPS[field] or 0) + delta
end

-- A lease of this call, written with the others at its end.
function Q.lease(look, id)
    LEASES[#LEASES + 1] = look
    LEASES[#LEASES + 1] = id
end

-- A random name of this life of the keyspace: another one tells a client that Redis forgot.
function Q.epoch_ensure(kind)
    local fields = META_FIELDS[kind]
    local values = call('HMGET', P .. 'meta', unpack(fields))
    rawset(META, 'epoch', values[1] or '')
    for i = 2, #fields do
        rawset(META, fields[i], tonumber(values[i]) or 0)
    end
    if META.epoch == '' then
        local known, info = pcall(call, 'INFO', 'server')
        local salt = known and tostring(info):match('run_id:(%x+)') or ''
        Q.meta_set('epoch', redis.sha1hex(P .. SEED .. salt):sub(1, 32))
        Q.meta_set('layout', MAJOR)
    end
end

-- Of a run that was read in this call the new values are known: one write for all of them.
function Q.flush_run(run, bumps)
    local record, list = RUNS[run], {}
    for field, delta in pairs(bumps) do
        local known = record and record.counts[field]
        if delta ~= 0 and known then
            list[#list + 1] = field
            list[#list + 1] = text_of(known + delta)
        elseif delta ~= 0 then
            call('HINCRBY', P .. 'run:' .. run, field, delta)
        end
    end
    for band, start in pairs(record and record.vt_changed or {}) do
        list[#list + 1] = 'vt:' .. band
        list[#list + 1] = start
    end
    if #list > 0 then
        call('HSET', P .. 'run:' .. run, unpack(list))
    end
end

local function flush()
    if #LEASES > 0 then
        call('ZADD', P .. 'leases', unpack(LEASES))
    end
    for field, delta in pairs(BUMPS) do
        if delta ~= 0 then
            call('HINCRBY', P .. 'n', field, delta)
        end
    end
    for run, bumps in pairs(RUN_BUMPS) do
        Q.flush_run(run, bumps)
    end
    if next(META.changed) then
        local list = {}
        for field, value in pairs(META.changed) do
            list[#list + 1] = field
            list[#list + 1] = value
        end
        call('HSET', P .. 'meta', unpack(list))
    end
end

local function begin(keys)
    if #keys ~= 1 or #keys[1] > 128 or not keys[1]:find('^evalq:{[%w._-]+}:$') then
        refuse('the one key must be a prefix like evalq:{main}:')
    end
    P, call = keys[1], redis.call
    local time = call('TIME')
    NOW = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    SEED = time[1] .. '.' .. time[2]
    NOW_TEXT = text_of(NOW)
    META, BUMPS, RUNS, RUN_BUMPS, LEASES = setmetatable({ changed = {} }, META_INDEX), {}, {}, {}, {}
    FLOWS, CLASSES = {}, {}
end

local function error_text(problem)
    if type(problem) == 'table' then
        return tostring(problem.err or problem[1] or 'unknown error')
    end
    local text = tostring(problem) -- Redis's pcall has made text of an error table already.
    return text:find('^%u[%u_]+ ') and text or 'EVQ_INTERNAL ' .. text
end

--[[
Registers evalq_v1_NAME. kind "ro": no writes; "drain" and "claim": runs in a full Redis too; "grow": refused there.
What was counted before an error is still written: a half-done call must not make the counters lie.
--]]
local function verb(name, kind, body)
    local flags = kind == 'ro' and { 'no-writes' } or kind ~= 'grow' and { 'allow-oom' } or {}
    local function run(keys, args)
        begin(keys)
        if kind ~= 'ro' then
            Q.epoch_ensure(kind)
        end
        return body(args)
    end
    local function callback(keys, args)
        RUNS, RUN_BUMPS, BUMPS, META, LEASES = {}, {}, {}, { changed = {} }, {} -- What an earlier call left must not be written for it.
        local ok, reply = pcall(run, keys, args)
        if kind ~= 'ro' then
            local flushed, problem = pcall(flush)
            if ok and not flushed then
                ok, reply = false, problem
            end
        end
        if not ok then
            return redis.error_reply(error_text(reply))
        end
        return reply
    end
    redis.register_function({ function_name = 'evalq_v1_' .. name, callback = callback, flags = flags })
end
