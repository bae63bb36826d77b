--[[
Jobs: their ids, their hashes, and the one way in which they move between states. An unfinished job is in exactly one
place: wait or begun (queued), delayed, leases or sharded (running).
--]]

-- A job's table, with room for what J.load() adds.
function J.fresh(id, run, step, variant, suite, flow)
    return { id = id, run = run, step = step, variant = variant, suite = suite, flow = flow, gen = 1, tag = step, base = id,
        shard = false, parent = false, key = false, state = false, class = false, priority = false, place = false,
        attempts = 0, token = false, keep = false, shards = false, merge = false }
end

-- RUN/STEP/VARIANT/SUITE[~G][@K] in parts, or nil.
function J.parse(id)
    if type(id) ~= 'string' or #id > 191 then
        return nil
    end
    local run, step, variant, suite, rest = match(id, '^([^/]+)/(%d+)/([^/]+)/([^/~@]+)(.*)$')
    if not run or #step > 13 or not (name_ok(run, 64) and name_ok(variant, 32) and name_ok(suite, 32)) then
        return nil
    end
    local key = J.fresh(id, run, step, variant, suite, run .. '/' .. variant .. '/' .. suite)
    if rest ~= '' then
        key.tag, key.base = step .. rest, id:sub(1, #id - #rest)
        local gen, shard = rest:match('^~(%d+)(.*)$')
        if gen then
            key.gen = tonumber(gen)
            rest = shard
        end
        if rest ~= '' then
            key.shard = tonumber(rest:match('^@(%d+)$'))
            if not key.shard then
                return nil
            end
            key.parent = id:match('^(.*)@%d+$')
        end
    end
    return key
end

--[[
As J.parse(), of a tag in a flow whose name's parts are known: flow, name (of the run), variant, suite. Nil as there.
--]]
function J.of_flow(f, tag)
    if not f.suite or not find(tag, '^%d+$') then
        local id = J.id_of(f.flow, tag)
        return id and J.parse(id)
    end
    local id = f.name .. '/' .. tag .. '/' .. f.variant .. '/' .. f.suite
    if #tag > 13 or not (name_ok(f.name, 64) and name_ok(f.variant, 32) and name_ok(f.suite, 32)) then
        return nil
    end
    return J.fresh(id, f.name, tag, f.variant, f.suite, f.flow)
end

function J.id_of(flow, tag)
    local run, rest = flow:match('^([^/]+)/(.+)$')
    local step, suffix = tag:match('^(%d+)(.*)$')
    if not run or not step then
        return nil
    end
    return run .. '/' .. step .. '/' .. rest .. suffix
end

-- Fields that only some verbs ask for are read when they do: each that is asked for costs a walk through the hash.
local RARE = { last = true, cancel = true, suspect = true, hb = true, lease = true, fingerprint = true, tasks = true,
    submitted = true, alone = true, started = true, worker = true, weights = true, retries = true }
-- What a claim and what the end of an attempt will want besides.
local FIELDS_CLAIM = { 'submitted', 'tasks', 'alone' }
local FIELDS_END = { 'started', 'worker', 'weights' }
local FIELDS_BEAT = { 'hb', 'suspect', 'cancel' }
local RARE_INDEX = {
    __index = function(j, field)
        if not RARE[field] then
            return nil
        end
        local value = call('HGET', j.key or P .. 'job:' .. j.id, field)
        rawset(j, field, value)
        return value
    end,
}

--[[
The job's state as a table, with the parts of its id; nil when there is none. Errors on a hash of another type. more: three
further fields that the caller will want, read along. parsed: what J.parse() made of the id, where the caller has it.
--]]
function J.load(id, more, parsed)
    local j = parsed or J.parse(id)
    if not j then
        return nil
    end
    local v
    j.key = P .. 'job:' .. id
    if more then
        v = call('HMGET', j.key, 'state', 'class', 'priority', 'place', 'attempts', 'token', 'keep', 'shards', 'merge',
            more[1], more[2], more[3])
        j[more[1]], j[more[2]], j[more[3]] = v[10], v[11], v[12]
    else
        v = call('HMGET', j.key, 'state', 'class', 'priority', 'place', 'attempts', 'token', 'keep', 'shards', 'merge')
    end
    if not v[1] then
        return nil
    end
    j.state, j.class, j.priority, j.place, j.attempts = v[1], v[2], v[3], v[4], SMALL_OF[v[5]] or tonumber(v[5]) or 0
    j.token, j.keep, j.shards, j.merge = v[6], v[7], v[8], v[9]
    return setmetatable(j, RARE_INDEX)
end

-- How often the job was retried by hand under this id.
function J.retries(j)
    return integer_of(j.retries, 0, 2147483646) or 0
end

-- What must hold before a job may be moved; anybody can write rubbish into a hash.
function J.sane(j)
    return (OPEN[j.state] or ENDED[j.state]) and integer_of(j.class, 1, 9999) and BANDS[j.priority] and
        integer_of(j.place, 0, 9007199254740992)
end

function J.open_key(j)
    return P .. (j.keep == '1' and 'openkeep:' or 'open:') .. j.flow
end

-- Shards and merges were begun already: they go before everything else of their flow.
function J.wait_key(j)
    return P .. ((j.shard or j.merge == '1') and 'begun:' or 'wait:') .. j.flow .. ':' .. j.class .. ':' .. j.priority
end

-- Names of the counters of open states: of `P n`, by class; and of every state, of a run.
local COUNTER = { queued = {}, delayed = {}, running = {}, active = {} }
local RUN_COUNTER = { queued = 'n:queued', delayed = 'n:delayed', running = 'n:running', done = 'n:done', dead = 'n:dead',
    skipped = 'n:skipped', cancelled = 'n:cancelled' }

local function counter(state, class)
    local names = COUNTER[state]
    if not names then
        return state
    end
    local name = names[class]
    if not name then
        name = state .. ':' .. class
        names[class] = name
    end
    return name
end

function J.count(j, state, delta)
    if j.shard then
        return -- The parent stands for its shards in every count.
    end
    local name = counter(state, j.class)
    BUMPS[name] = (BUMPS[name] or 0) + delta
    F.run_bump(j.run, RUN_COUNTER[state], delta)
end

function J.active(j, delta)
    local name = counter('active', j.class)
    BUMPS[name] = (BUMPS[name] or 0) + delta
    local run = F.run(j.run)
    run.active, run.touched = run.active + delta, true
    if META.suites_limited > 0 then
        F.suite_settle(j.suite)
    end
end

-- As J.count() and J.active() of n jobs of one class and run, no shards, that were queued and are running, where no suite has a
-- cap. run: its record.
function J.count_started(class, run, n)
    local queued, running, active = counter('queued', class), counter('running', class), counter('active', class)
    BUMPS[queued] = (BUMPS[queued] or 0) - n
    BUMPS[running] = (BUMPS[running] or 0) + n
    BUMPS[active] = (BUMPS[active] or 0) + n
    run['n:queued'], run['n:running'], run.active = run['n:queued'] - n, run['n:running'] + n, run.active + n
    run.touched = true
end

-- Takes an unfinished job out of its place.
function J.leave(j)
    if j.state == 'queued' then
        call('ZREM', J.wait_key(j), j.tag)
    elseif j.state == 'delayed' then
        call('ZREM', P .. 'delayed', j.id)
    elseif Q.mended('leases', call, 'ZREM', P .. 'leases', j.id) == 1 or call('ZREM', P .. 'sharded', j.id) == 0 then
        J.active(j, -1) -- One that stands in neither had its lease go with the key.
    end
    J.count(j, j.state, -1)
end

--[[
to: queued, delayed (at), running (at: when to look), sharded; more: further fields of the hash.
Every move of an unfinished job goes through here, so that places, counts and ready sets agree.
--]]
function J.place(j, to, at, more)
    local was_running = j.state == 'running'
    if OPEN[j.state] then
        J.leave(j)
    end
    local fields = more or {}
    local n = fields[1] == 'state' and 0 or #fields -- Of a new job it is the first, which every verb finds soonest.
    j.state = to == 'sharded' and 'running' or to
    fields[n + 1], fields[n + 2] = 'state', j.state
    call('HSET', j.key or P .. 'job:' .. j.id, unpack(fields))
    if to == 'queued' then
        call('ZADD', J.wait_key(j), j.place, j.tag)
    elseif to == 'delayed' then
        call('ZADD', P .. 'delayed', at, j.id)
    elseif to == 'running' then
        Q.mended('leases', call, 'ZADD', P .. 'leases', at, j.id)
        J.active(j, 1)
    else
        call('ZADD', P .. 'sharded', j.place, j.id)
    end
    J.count(j, j.state, 1)
    local ready, before = F.settle(j.flow, j.class, j.priority, nil, to == 'queued')
    if ready and to == 'queued' and not before then
        F.wake(j.class) -- Of a flow that stood there already, the wake is passed on by every claim.
    end
    if was_running then
        F.run_freed(j.run)
    end
end

function J.queue(j, more)
    local fields = more or {}
    fields[#fields + 1] = 'queued'
    fields[#fields + 1] = NOW_TEXT
    J.place(j, 'queued', nil, fields)
end

-- How one attempt's last word was answered, so that repeating it is answered alike.
function J.last(j, word)
    return j.token .. ' ' .. word
end

function J.repeated(j, token, verb_name)
    if not j.last or token == '' then
        return nil
    end
    local last_token, word, rest = j.last:match('^(%S+) (%S+) ?(.*)$')
    if last_token == token and word == verb_name then
        return rest
    end
    return nil
end

-- All shards of a parent go, wherever they are.
function J.shards_drop(parent)
    local count = tonumber(parent.shards)
    if not count then
        return
    end
    for k = 0, math.min(count, 1024) - 1 do
        local id = parent.id .. '@' .. k
        local ok, shard = pcall(J.load, id)
        if ok and shard and OPEN[shard.state] and J.sane(shard) then
            J.leave(shard)
        end
        call('UNLINK', P .. 'job:' .. id, P .. 'log:' .. id)
    end
    call('UNLINK', P .. 'part:' .. parent.id)
    F.settle(parent.flow, parent.class, parent.priority)
    F.run_freed(parent.run)
end

-- An end in the job's hash, where its verb has no fields of its own to add.
function J.end_write(j, state, reason, last)
    call('HSET', j.key or P .. 'job:' .. j.id, 'state', state, 'reason', reason, 'ended', NOW_TEXT, 'token', '', 'last', last)
    j.state, j.reason, j.ended, j.token = state, reason, NOW, nil
end

--[[
The end of a job: done, dead, skipped or cancelled, with its entry in the stream and in the run's index. The end of a
shard that is not done is the end of its parent. more: further fields of the hash.
--]]
function J.finish(j, state, reason, word, more)
    if j.shard then
        local parent = J.load(j.parent)
        local fields = { 'state', state, 'reason', short_text(reason), 'token', '', 'ended', NOW }
        if word then
            fields[#fields + 1] = 'last'
            fields[#fields + 1] = J.last(j, word)
        end
        J.leave(j)
        j.state = state
        call('HSET', P .. 'job:' .. j.id, unpack(fields))
        if parent and parent.state == 'running' and state ~= 'done' then
            local tail = call('GET', P .. 'log:' .. j.id)
            if tail then
                call('SET', P .. 'log:' .. parent.id, tail)
            end
            J.finish(parent, state, 'shard ' .. j.shard .. ': ' .. reason)
        else
            F.settle(j.flow, j.class, j.priority)
            F.run_freed(j.run)
        end
        return
    end
    local was_running = j.state == 'running'
    if OPEN[j.state] then
        J.leave(j)
    end
    reason = reason ~= '' and short_text(reason) or ''
    if more and more[1] then
        call('HSET', P .. 'job:' .. j.id, unpack(more))
    end
    J.end_write(j, state, reason, word and J.last(j, word) or j.last or '')
    call('ZREM', J.open_key(j), j.tag)
    Q.ended(state, j.id)
    J.count(j, state, 1)
    R.publish_end(j)
    if j.shards then
        J.shards_drop(j)
    end
    if was_running and F.run_free(j.run) then
        return -- Nothing that waits has moved, and nothing was held back.
    end
    F.settle(j.flow, j.class, j.priority)
    if was_running then
        F.run_freed(j.run)
    end
end

--[[
A job is wanted no more: one that a lease holds is marked, which the next heartbeat acts on; any other ends in state: it waits, it is
split, or nobody is held to it any more. Returns the state after.
--]]
function J.cancel(j, state, reason)
    if j.state == 'running' and Q.mended('leases', call, 'ZSCORE', P .. 'leases', j.id) then
        call('HSET', P .. 'job:' .. j.id, 'cancel', reason)
        return 'running'
    end
    J.finish(j, state, reason)
    return state
end

--[[
The job that token holds, or nil. Until another claim the token of a reclaimed job stays good: its holder is heard
from again, so the job is running again, and nothing is charged for it.
--]]
function J.hold(id, token, more, parsed)
    local j = J.load(id, more, parsed)
    if not j or not j.token or token == '' or j.token ~= token or not J.sane(j) then
        return nil, j
    end
    if j.state == 'queued' or j.state == 'delayed' then
        J.place(j, 'running', NOW + (tonumber(j.lease) or Q.meta().lease_ms), { 'suspect', '' })
        j.suspect = nil
        Q.bump('regained', 1)
    elseif j.state ~= 'running' then
        return nil, j
    end
    return j, j
end

-- Exponential, with jitter taken from the id: the same job always waits the same, different jobs differ.
function J.backoff(id, attempt, base_ms)
    local jitter = tonumber(redis.sha1hex(id .. attempt):sub(1, 4), 16) / 65535
    local wait = base_ms * 4 ^ math.min(math.max(attempt, 1) - 1, 8)
    return math.floor(math.min(wait, BACKOFF_MS_MAX) * (0.8 + 0.4 * jitter))
end

-- Bytes that are no job, or a job that is none any more: kept apart with the reason, never in the way.
function Q.bad(subject, reason, data)
    local words = { 'XADD', P .. 'bad', 'MAXLEN', '~', 10000, '*', 'id', tostring(subject):sub(1, 200), 'reason',
        tostring(reason):sub(1, 200), 'data', tostring(data or ''):sub(1, 4096) }
    local ok, problem = pcall(call, unpack(words))
    if not ok and wrong_type(problem) then -- Not mended(), which tells it here.
        call('UNLINK', P .. 'bad')
        call(unpack(words))
    elseif not ok then
        error(problem, 0)
    end
    Q.bump('bad_entries', 1)
end

Q.AFTER_MENDING = {} -- By name: what is to be noted of a key that was lost so.

--[[
What f, a command on the key of this name alone, replies. Where another type than f's stands under the name, it is taken away and f
makes the key anew: left there it would hold up all. Its text is kept with the reason.
--]]
function Q.mended(name, f, ...)
    local ok, reply = pcall(f, ...)
    if ok then
        return reply
    end
    if not wrong_type(reply) then
        error(reply, 0)
    end
    local _, text = pcall(call, 'GET', P .. name)
    Q.bad(name, 'the key was of another type and is made anew: ' .. error_said(reply), type(text) == 'string' and text or '')
    call('UNLINK', P .. name)
    if Q.AFTER_MENDING[name] then
        Q.AFTER_MENDING[name]()
    end
    return f(...)
end

--[[
Takes whatever stands under this id out of every place. What it holds is left for people to look at, as long as of a dead
job; its hash becomes `bad`, so that it is not counted as waiting. The row in its run's index is for `forget`.
--]]
function J.set_aside(id, reason, class, place)
    local key = J.parse(id)
    Q.bad(id, reason, '')
    for _, set in ipairs({ 'delayed', 'leases', 'sharded' }) do
        pcall(call, 'ZREM', P .. set, id)
    end
    if not key then
        return
    end
    for _, set in ipairs({ 'open:', 'openkeep:' }) do
        pcall(call, 'ZREM', P .. set .. key.flow, key.tag)
    end
    if class then
        for band = 0, 3 do
            pcall(call, 'ZREM', P .. 'wait:' .. key.flow .. ':' .. class .. ':' .. band, key.tag)
            pcall(call, 'ZREM', P .. 'begun:' .. key.flow .. ':' .. class .. ':' .. band, key.tag)
        end
    end
    if place and not key.shard then
        Q.bump(place, -1)
        Q.bump('bad', 1)
        F.run_bump(key.run, 'n:' .. place:match('^%a+'), -1)
    end
    pcall(call, 'HSET', P .. 'job:' .. id, 'state', 'bad', 'reason', short_text(reason), 'token', '')
    if not key.shard then -- Those go with their job.
        pcall(call, 'ZADD', P .. 'ended:bad', NOW_TEXT, id)
        pcall(call, 'RPUSH', P .. 'index:' .. key.run, R.row(id, ''))
    end
end
