--[[
The base of every function: the key prefix, the server's time, checked arguments, the queue's meta record, and counters
that are summed during a call and written once at its end. Nothing that was read from Redis is kept for the next call.

Lua costs more here than Redis does. Four things are slow: a number handed to Redis as a number (Redis prints it as a
double, so hand it over as text), patterns, tables that grow, and garbage.
--]]
local call -- redis.call. It exists only while a function runs, so begin() sets it.
local MAJOR = 1
local DAY_MS = 86400000
local SPAN = 1099511627776 -- 2^40. Steps are below it. A job's place is its session's ordinal * SPAN + step.
local STATES = { 'queued', 'delayed', 'running', 'done', 'dead', 'skipped', 'cancelled' }
local BANDS = { ['0'] = 0, ['1'] = 1, ['2'] = 2, ['3'] = 3 }
local OPEN = { queued = true, delayed = true, running = true }
local ENDED = { done = true, dead = true, skipped = true, cancelled = true }

-- Defaults. A field of the same name in `PREFIX meta` overrides one.
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
local FAR_MS = 10000 -- A job that is due later than this is checked, because a clock may have jumped.
local CLASSES_MAX = 64
local SLICE = 100
local FEW = 8

local PREFIX, NOW = '', 0
local NOW_TEXT = '0' -- NOW as text, which is cheaper to hand to Redis.
local TIME = { '0', '0' } -- The reply of TIME: seconds, microseconds.
local ARGS, KIND = {}, '' -- The arguments of this call and the kind of its function.
local META, CHANGED, BUMPS, RUNS, RUN_BUMPS, LEASES, ENDS, COSTS = nil, {}, {}, {}, {}, {}, {}, {}
local CLAIMS = false -- Whether this call claims. Then it needs more fields of a run.
local FLOWS, CLASSES = {}, {} -- What a submit read, kept for later submits of the same call.

-- The library's modules. A file of library/ or a function's file fills each.
local Queue, Keys, Job, Flow, Backfill, Sweep, Results = {}, {}, {}, {}, {}, {}, {}
local Ticket, View, Submit, PlainSubmits, Claim, Prefer, Complete, PlainEnds = {}, {}, {}, {}, {}, {}, {}, {}

-- Lua's own functions. They do not exist while the library loads, so the first call sets them.
local find, match, format, byte, char, floor, max
local SMALL, SMALL_OF = { [-1] = '-1' }, {} -- Text of each small integer, and integer of each text.
local TEXT_HEAD = {} -- The bytes that msgpack writes before a text, by its length up to 255.

local function lua_ready()
    find, match, format, byte, char = string.find, string.match, string.format, string.byte, string.char
    floor, max = math.floor, math.max
    for number = 0, 255 do
        SMALL[number] = format('%d', number)
        SMALL_OF[SMALL[number]] = number
        TEXT_HEAD[number] = number < 32 and char(160 + number) or '\217' .. char(number)
    end
end

-- Decimal text of an integer. Lua's own conversion keeps only 14 digits, and Redis's is slow.
local function text_of(number)
    return SMALL[number] or format('%d', number)
end

-- The same for any number. Redis converts a fraction itself, without loss.
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

-- Whether evalq itself made the run, for example for a merge that the gateway was asked for. Such a run is not listed,
-- and the sinks get no results of it.
local function run_is_internal(run)
    return run:sub(1, 7) == '.evalq-'
end

local NAMES, names_count = {}, 0 -- A cache of valid names. It is emptied when it has 1,000.

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

-- Labels of workers, requests and metrics are printable and have no blanks.
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

-- Cuts a text to 64 printable bytes, so that a hash with it stays compact in memory.
local function short_text(text)
    return (tostring(text or ''):gsub('[%z\1-\31\127]', ' '):sub(1, 64))
end

--[[
Fields of `PREFIX meta`, read on first use. All but the epoch are numbers. CHANGED is written once, at the end of the
call.
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

-- The fields that each kind of function needs, read at once. A submit to a known flow needs none.
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

-- Adds to a counter of `PREFIX n`, which is written at the end of the call.
function Queue.bump(field, delta)
    BUMPS[field] = (BUMPS[field] or 0) + delta
end

-- Notes a job that ended in this call. The set of ended jobs is written at the end of the call.
function Queue.note_end(state, id)
    local list = ENDS[state]
    if not list then
        ENDS[state] = { NOW_TEXT, id }
        return
    end
    local n = #list
    list[n + 1], list[n + 2] = NOW_TEXT, id
    if n >= 1000 then -- unpack() takes only some thousand arguments.
        Queue.repairing('ended:' .. state, call, 'ZADD', PREFIX .. 'ended:' .. state, unpack(list))
        ENDS[state] = nil
    end
end

-- Notes a lease, which is written at the end of the call. look: when to check it.
function Queue.note_lease(look, id)
    LEASES[#LEASES + 1] = look
    LEASES[#LEASES + 1] = id
end

-- A text that differs from call to call.
function Queue.seed()
    return TIME[1] .. '.' .. TIME[2]
end

-- Makes the epoch, a random name of this life of the keyspace. If it changes, a client knows that Redis lost its data.
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

-- The counts of a run, and the names under which its record keeps their old values.
local RUN_COUNTS = { 'active', 'n:queued', 'n:running', 'n:done' }
local RUN_BEFORE = { active = 'was active', ['n:queued'] = 'was n:queued', ['n:running'] = 'was n:running',
    ['n:done'] = 'was n:done' }

-- Writes the counts of a run that was read in this call, all in one command.
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
    for run, bumps in pairs(RUN_BUMPS) do -- A run whose key has another type must not stop the others.
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
    for field, delta in pairs(BUMPS) do -- Last, so that the rest is written even if this key has another type.
        if delta ~= 0 then
            call('HINCRBY', PREFIX .. 'n', field, text_of(delta))
        end
    end
end

-- Returns an empty table: the same one if it is empty, which makes no garbage.
local function emptied(list)
    return next(list) == nil and list or {}
end

local function forget()
    META = META and next(META) == nil and META or setmetatable({}, META_INDEX)
    CHANGED, BUMPS, RUNS, RUN_BUMPS = emptied(CHANGED), emptied(BUMPS), emptied(RUNS), emptied(RUN_BUMPS)
    Keys.begin()
    LEASES, ENDS, FLOWS, CLASSES, COSTS = emptied(LEASES), emptied(ENDS), emptied(FLOWS), emptied(CLASSES), emptied(COSTS)
end

local prefix_known -- The last valid prefix.

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

-- about: the job or flow that the problem belongs to, if the caller knows it.
local function error_text(problem, about)
    local text = error_said(problem)
    if find(text, '^WRONGTYPE') then
        local known, sentence = pcall(Keys.explain, text, about)
        return known and sentence or text
    end
    return text
end

--[[
Registers the function evalq_v1_NAME. Kinds: "ro" writes nothing; "drain" and "claim" also run in a full Redis; "grow"
and "submit" are refused there; "submit" makes the epoch itself if there may be none. After an error, what was counted
is still written, so that the counters stay right.
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
        forget() -- Drops what an earlier call left.
        local ok, reply = pcall(run, keys, args)
        if kind ~= 'ro' then
            local noted, trouble = pcall(flush_ends) -- If a set of ended jobs has another type, the counts are still right.
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
