--[[
What every function stands on: the prefix, server time, checked arguments, the queue's meta record and counters that
are added up during a call and written once at its end. Of what Redis holds nothing survives the call; texts that were
found to be names, and numbers as text, do.

What costs here is Lua more than Redis: numbers that Redis is given as numbers (it prints them as doubles: they go as text),
patterns, tables that grow, and whatever must be collected again.
--]]
local call -- redis.call, which exists only while a function runs; begin() sets it.
local MAJOR = 1
local DAY_MS = 86400000
local SPAN = 1099511627776 -- 2^40: steps lie below it; place = session ordinal * SPAN + step.
local STATES = { 'queued', 'delayed', 'running', 'done', 'dead', 'skipped', 'cancelled' }
local BANDS = { ['0'] = 0, ['1'] = 1, ['2'] = 2, ['3'] = 3 }
local OPEN = { queued = true, delayed = true, running = true }
local ENDED = { done = true, dead = true, skipped = true, cancelled = true }

-- Defaults; a field of the same name in `PREFIX meta` takes its place.
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
local RETRY_MS_MAX = BACKOFF_MS_MAX * 6 / 5 -- With the jitter of Job.backoff().
local FAR_MS = 10000 -- Who is due later than that is looked at: it may be a clock's fault.
local CLASSES_MAX = 64
local SLICE = 100
local FEW = 8

local PREFIX, NOW = '', 0
local NOW_TEXT = '0' -- The same as text: cheaper to hand to Redis.
local TIME = { '0', '0' } -- The same as Redis told it: seconds, microseconds.
local ARGS, KIND = {}, '' -- Of the call.
local META, CHANGED, BUMPS, RUNS, RUN_BUMPS, LEASES, ENDS, COSTS = nil, {}, {}, {}, {}, {}, {}, {}
local CLAIMS = false -- This call claims: of a run it will want more.
local FLOWS, CLASSES = {}, {} -- What submits of one call read, for those that come after in it.

-- The library's modules. A file of library/ or a function's file fills each.
local Queue, Keys, Job, Flow, Backfill, Sweep, Results = {}, {}, {}, {}, {}, {}, {}
local Ticket, View, Submit, PlainSubmits, Claim, Complete, PlainEnds = {}, {}, {}, {}, {}, {}, {}

local find, match, format, byte, char, floor, max -- As Lua has them; set with the first call, when they are there.
local SMALL, SMALL_OF = { [-1] = '-1' }, {} -- Small integers as text, and back.
local TEXT_HEAD = {} -- What msgpack puts before a text of so many bytes, up to 255.

local function lua_ready()
    find, match, format, byte, char = string.find, string.match, string.format, string.byte, string.char
    floor, max = math.floor, math.max
    for number = 0, 255 do
        SMALL[number] = format('%d', number)
        SMALL_OF[SMALL[number]] = number
        TEXT_HEAD[number] = number < 32 and char(160 + number) or '\217' .. char(number)
    end
end

-- Decimal text of an integer: Lua's own conversion keeps 14 digits only, and Redis's of numbers is slow.
local function text_of(number)
    return SMALL[number] or format('%d', number)
end

-- The same where it may be no integer: Redis writes those itself, so that nothing of them is lost.
local function number_text(number)
    if number % 1 == 0 and number < 9007199254740992 and number > -9007199254740992 then
        return text_of(number)
    end
    return number
end

local function refuse(reason)
    error({ err = 'EVQ_INVALID ' .. reason }, 0)
end

local function integer_of(text, low, high)
    local number = SMALL_OF[text or '']
    if not number then
        if type(text) ~= 'string' or #text > 17 or not find(text, '^-?%d+$') then
            return nil
        end
        number = tonumber(text)
    end
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

-- A run of evalq's own, as of a merge that the gateway was asked for: it is not listed, and the stream of results,
-- which the sinks read, has nothing of it.
local function run_is_internal(run)
    return run:sub(1, 7) == '.evalq-'
end

local NAMES, names_count = {}, 0 -- Texts that were found to be names: at most 1,000, then anew.

local function name_ok(text, bytes_max)
    if type(text) ~= 'string' or #text < 1 or #text > bytes_max then
        return false
    end
    if not NAMES[text] then
        if not find(text, '^[%w._-]+$') then
            return false
        end
        if names_count >= 1000 then
            NAMES, names_count = {}, 0
        end
        NAMES[text], names_count = true, names_count + 1
    end
    return true
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
Fields of `PREFIX meta`, each read when first asked for: numbers, save the epoch. CHANGED is written back once, at the end
of the call.
--]]
local META_INDEX = {
    __index = function(meta, field)
        local text = call('HGET', PREFIX .. 'meta', field)
        local value = text or ''
        if field ~= 'epoch' then
            value = tonumber(text) or DEFAULTS[field] or 0
        end
        rawset(meta, field, value)
        return value
    end,
}

function Queue.meta()
    return META
end

-- What a verb of each kind will want of it, read in one go. A submit to a flow that is known there wants nothing.
local META_FIELDS = {
    grow = { 'epoch' },
    drain = { 'epoch', 'suites_limited' },
    claim = { 'epoch', 'suites_limited', 'paused', 'served', 'token', 'classes_version', 'clock:0', 'clock:1', 'clock:2',
        'clock:3', 'idle_until' },
}

function Queue.set_meta(field, value)
    META[field] = value
    CHANGED[field] = value
end

-- Counters of `PREFIX n`, added up and written at the end of the call.
function Queue.bump(field, delta)
    BUMPS[field] = (BUMPS[field] or 0) + delta
end

-- A job that ended in this call, noted with the others at its end.
function Queue.note_end(state, id)
    local list = ENDS[state]
    if not list then
        ENDS[state] = { NOW_TEXT, id }
        return
    end
    local n = #list
    list[n + 1], list[n + 2] = NOW_TEXT, id
    if n >= 1000 then -- Lua hands on some thousand arguments at most.
        Queue.repairing('ended:' .. state, call, 'ZADD', PREFIX .. 'ended:' .. state, unpack(list))
        ENDS[state] = nil
    end
end

-- A lease of this call, written with the others at its end.
function Queue.note_lease(look, id)
    LEASES[#LEASES + 1] = look
    LEASES[#LEASES + 1] = id
end

-- Differs from call to call.
function Queue.seed()
    return TIME[1] .. '.' .. TIME[2]
end

-- A random name of this life of the keyspace: another one tells a client that Redis forgot.
function Queue.ensure_epoch(kind)
    local fields = META_FIELDS[kind]
    local values = call('HMGET', PREFIX .. 'meta', unpack(fields))
    META.epoch = values[1] or ''
    for i = 2, #fields do
        META[fields[i]] = values[i] and (SMALL_OF[values[i]] or tonumber(values[i])) or 0
    end
    if META.epoch == '' then
        local known, info = pcall(call, 'INFO', 'server')
        local salt = known and tostring(info):match('run_id:(%x+)') or ''
        Queue.set_meta('epoch', redis.sha1hex(PREFIX .. Queue.seed() .. salt):sub(1, 32))
        Queue.set_meta('layout', MAJOR)
    end
end

-- Counts that are read with a run, and where its record keeps what they were.
local RUN_COUNTS = { 'active', 'n:queued', 'n:running', 'n:done' }
local RUN_BEFORE = { active = 'was active', ['n:queued'] = 'was n:queued', ['n:running'] = 'was n:running',
    ['n:done'] = 'was n:done' }

-- Of a run that was read in this call the new values are known: one write for all of them.
local function flush_known(run, record)
    local list, n = { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }, 0
    for i = 1, #RUN_COUNTS do
        local field = RUN_COUNTS[i]
        local value = record[field]
        if value and value ~= record[RUN_BEFORE[field]] then
            list[n + 1], list[n + 2] = field, text_of(value)
            n = n + 2
        end
    end
    if record.moved then
        list[n + 1], list[n + 2] = record.moved, number_text(record[record.moved])
        n = n + 2
    end
    if n > 0 then
        call('HSET', PREFIX .. 'run:' .. run, unpack(list, 1, n))
    end
end

local function flush_bumps(run, bumps)
    for field, delta in pairs(bumps) do
        if delta ~= 0 then
            call('HINCRBY', PREFIX .. 'run:' .. run, field, text_of(delta))
        end
    end
end

local function flush_ends()
    for state, list in pairs(ENDS) do
        Queue.repairing('ended:' .. state, call, 'ZADD', PREFIX .. 'ended:' .. state, unpack(list))
    end
end

local function flush()
    for name, flow in pairs(FLOWS) do
        if flow.other then
            call('HSET', PREFIX .. 'flow:' .. name, 'policy', flow.policy, 'submitted', NOW_TEXT, 'session', text_of(flow.session),
                'ord', text_of(flow.ord), 'top', text_of(flow.top))
        elseif flow.higher then
            call('HSET', PREFIX .. 'flow:' .. name, 'submitted', NOW_TEXT, 'top', text_of(flow.top))
        elseif flow.noted then
            call('HSET', PREFIX .. 'flow:' .. name, 'submitted', NOW_TEXT)
        end
    end
    if #LEASES > 0 then
        Queue.repairing('leases', call, 'ZADD', PREFIX .. 'leases', unpack(LEASES))
    end
    for run, bumps in pairs(RUN_BUMPS) do -- One whose hash is rubbish keeps no other's from being written.
        Keys.tried(flush_bumps, run, bumps)
    end
    for run, record in pairs(RUNS) do
        if record.touched then
            Keys.tried(flush_known, run, record)
        end
    end
    for suite, cost in pairs(COSTS) do
        if cost.learned then
            call('HSET', PREFIX .. 'cost', suite, text_of(cost.seconds))
        end
    end
    if next(CHANGED) then
        local list = {}
        for field, value in pairs(CHANGED) do
            list[#list + 1] = field
            list[#list + 1] = type(value) == 'number' and number_text(value) or value
        end
        call('HSET', PREFIX .. 'meta', unpack(list))
    end
    for field, delta in pairs(BUMPS) do -- Last: the rest is written though the key is rubbish.
        if delta ~= 0 then
            call('HINCRBY', PREFIX .. 'n', field, text_of(delta))
        end
    end
end

-- A table anew, or the same where it is still empty: that makes nothing to be collected.
local function emptied(list)
    return next(list) == nil and list or {}
end

local function forget()
    META = META and next(META) == nil and META or setmetatable({}, META_INDEX)
    CHANGED, BUMPS, RUNS, RUN_BUMPS = emptied(CHANGED), emptied(BUMPS), emptied(RUNS), emptied(RUN_BUMPS)
    Keys.begin()
    LEASES, ENDS, FLOWS, CLASSES, COSTS = emptied(LEASES), emptied(ENDS), emptied(FLOWS), emptied(CLASSES), emptied(COSTS)
end

local prefix_known -- The last prefix that was looked at and found good.

local function begin(keys)
    if not find then
        lua_ready()
    end
    if #keys ~= 1 or (keys[1] ~= prefix_known and (#keys[1] > 128 or not find(keys[1], '^evalq:{[%w._-]+}:$'))) then
        refuse('the one key must be a prefix like evalq:{main}:')
    end
    PREFIX, prefix_known, call = keys[1], keys[1], redis.call
    TIME = call('TIME')
    local now = TIME[1] * 1000 + floor(TIME[2] / 1000)
    if now ~= NOW then
        NOW, NOW_TEXT = now, text_of(now)
    end
end

local function error_said(problem)
    if type(problem) == 'table' then
        return tostring(problem.err or problem[1] or 'unknown error')
    end
    local text = tostring(problem) -- Redis's pcall has made text of an error table already.
    return text:find('^%u[%u_]+ ') and text or 'EVQ_INTERNAL ' .. text
end

local function wrong_type(problem)
    return find(error_said(problem), '^WRONGTYPE') ~= nil
end

-- about: the job or flow that it is of, where the caller knows.
local function error_text(problem, about)
    local text = error_said(problem)
    if find(text, '^WRONGTYPE') then
        local known, sentence = pcall(Keys.explain, text, about)
        return known and sentence or text
    end
    return text
end

--[[
Registers evalq_v1_NAME. kind "ro": no writes; "drain" and "claim": runs in a full Redis too; "grow" and "submit": refused
there; "submit": makes the epoch itself, where it finds that there may be none.
What was counted before an error is still written: a half-done call must not make the counters lie.
--]]
local function verb(name, kind, body)
    local flags = kind == 'ro' and { 'no-writes' } or (kind == 'drain' or kind == 'claim') and { 'allow-oom' } or {}
    local function run(keys, args)
        begin(keys)
        if kind ~= 'ro' and kind ~= 'submit' then
            Queue.ensure_epoch(kind)
        end
        return body(args)
    end
    local function callback(keys, args)
        CLAIMS, ARGS, KIND = kind == 'claim', args, kind
        forget() -- What an earlier call left must not be written for this one.
        local ok, reply = pcall(run, keys, args)
        if kind ~= 'ro' then
            local noted, trouble = pcall(flush_ends) -- Where a set of ends is rubbish, the counts are right all the same.
            local flushed, problem = pcall(flush)
            if ok and not (noted and flushed) then
                ok, reply = false, not noted and trouble or problem
            end
        end
        if not ok then
            return redis.error_reply(error_text(reply))
        end
        return reply
    end
    redis.register_function({ function_name = 'evalq_v1_' .. name, callback = callback, flags = flags })
end
