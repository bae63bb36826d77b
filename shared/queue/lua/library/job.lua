--[[
Job: ids, hashes, and the functions that move a job between states. An unfinished job is in exactly one set: wait or begun
(queued), delayed, leases or sharded (running). README.md names the fast paths that move jobs without these functions.
--]]

-- Makes a job's table. It has all fields from the start, because a Lua table that grows costs time.
function Job.new(id, run, step, variant, suite, flow)
    return { id = id, run = run, step = step, variant = variant, suite = suite, flow = flow, gen = 1, tag = step, base = id,
        shard = false, parent = false, key = false, state = false, class = false, priority = false, place = false,
        attempts = 0, token = false, keep = false, shards = false, merge = false }
end

-- Parses an id, RUN/STEP/VARIANT/SUITE[~GENERATION][@SHARD]. Returns nil if it is not an id.
function Job.parse(id)
    if type(id) ~= 'string' or #id > 191 then
        return nil
    end
    local run, step, variant, suite, rest = match(id, '^([^/]+)/(%d+)/([^/]+)/([^/~@]+)(.*)$')
    if not run or #step > 13 or not (name_ok(run, 64) and name_ok(variant, 32) and name_ok(suite, 32)) then
        return nil
    end
    local key = Job.new(id, run, step, variant, suite, run .. '/' .. variant .. '/' .. suite)
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
Parses a tag (STEP[~GENERATION][@SHARD]) of a flow. The table `flow` has the fields flow, name (of the run), variant and
suite, so that the flow's name is not parsed again. Returns what Job.parse() returns.
--]]
function Job.parse_tag(flow, tag)
    if not flow.suite or not find(tag, '^%d+$') then
        local id = Job.id_of(flow.flow, tag)
        return id and Job.parse(id)
    end
    local id = flow.name .. '/' .. tag .. '/' .. flow.variant .. '/' .. flow.suite
    if #tag > 13 or not (name_ok(flow.name, 64) and name_ok(flow.variant, 32) and name_ok(flow.suite, 32)) then
        return nil
    end
    return Job.new(id, flow.name, tag, flow.variant, flow.suite, flow.flow)
end

function Job.id_of(flow, tag)
    local run, rest = flow:match('^([^/]+)/(.+)$')
    local step, suffix = tag:match('^(%d+)(.*)$')
    if not run or not step then
        return nil
    end
    return run .. '/' .. step .. '/' .. rest .. suffix
end

-- Fields that only some functions need. They are read on first use, because each field costs a walk through the hash.
local RARE = { last = true, cancel = true, suspect = true, hb = true, lease = true, fingerprint = true, tasks = true,
    submitted = true, alone = true, started = true, worker = true, weights = true, retries = true }
-- Rare fields that a claim, the end of an attempt and a heartbeat always need, so that they read them at once.
local FIELDS_CLAIM = { 'submitted', 'tasks', 'alone' }
local FIELDS_END = { 'started', 'worker', 'weights' }
local FIELDS_BEAT = { 'hb', 'suspect', 'cancel' }
local RARE_INDEX = {
    __index = function(job, field)
        if not RARE[field] then
            return nil
        end
        local value = call('HGET', job.key or PREFIX .. 'job:' .. job.id, field)
        rawset(job, field, value)
        return value
    end,
}

--[[
Reads a job: its state and the parts of its id, as a table. Returns nil if there is no such job. Raises an error if the
key is not a hash. more: three rare fields to read at once, or nil. parsed: the result of Job.parse(), if the caller has
it.
--]]
function Job.load(id, more, parsed)
    local job = parsed or Job.parse(id)
    if not job then
        return nil
    end
    local values
    job.key = PREFIX .. 'job:' .. id
    if more then
        values = call('HMGET', job.key, 'state', 'class', 'priority', 'place', 'attempts', 'token', 'keep', 'shards', 'merge',
            more[1], more[2], more[3])
        job[more[1]], job[more[2]], job[more[3]] = values[10], values[11], values[12]
    else
        values = call('HMGET', job.key, 'state', 'class', 'priority', 'place', 'attempts', 'token', 'keep', 'shards', 'merge')
    end
    if not values[1] then
        return nil
    end
    job.state, job.class, job.priority, job.place, job.attempts = values[1], values[2], values[3], values[4],
        SMALL_OF[values[5]] or tonumber(values[5]) or 0
    job.token, job.keep, job.shards, job.merge = values[6], values[7], values[8], values[9]
    return setmetatable(job, RARE_INDEX)
end

-- Returns how often people retried the job under this id.
function Job.retries(job)
    return integer_of(job.retries, 0, 2147483646) or 0
end

-- Whether the job's fields are valid, so that it can be moved. Anybody can write anything into a hash.
function Job.is_sane(job)
    return (OPEN[job.state] or ENDED[job.state]) and integer_of(job.class, 1, 9999) and BANDS[job.priority] and
        integer_of(job.place, 0, 9007199254740992)
end

function Job.open_key(job)
    return PREFIX .. (job.keep == '1' and 'openkeep:' or 'open:') .. job.flow
end

-- Shards and merges wait in `begun`. A claim takes them before the flow's other jobs, because their job has begun.
function Job.wait_key(job)
    return PREFIX .. ((job.shard or job.merge == '1') and 'begun:' or 'wait:') .. job.flow .. ':' .. job.class .. ':' ..
        job.priority
end

-- Names of counters: of open states by class, in `PREFIX n`, and of all states of a run, in its hash.
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

function Job.count(job, state, delta)
    if job.shard then
        return -- Every count has the parent instead of its shards.
    end
    local name = counter(state, job.class)
    BUMPS[name] = (BUMPS[name] or 0) + delta
    Flow.bump_run(job.run, RUN_COUNTER[state], delta)
end

function Job.active(job, delta)
    local name = counter('active', job.class)
    BUMPS[name] = (BUMPS[name] or 0) + delta
    local run = Flow.run(job.run)
    run.active, run.touched = run.active + delta, true
    if META.suites_limited > 0 then
        Flow.settle_suite(job.suite)
    end
end

-- Counts n jobs that left `queued` and are running: all of one class and run, none of them shards, with no suite at a
-- cap. run: the run's record.
function Job.count_started(class, run, n)
    local queued, running, active = counter('queued', class), counter('running', class), counter('active', class)
    BUMPS[queued] = (BUMPS[queued] or 0) - n
    BUMPS[running] = (BUMPS[running] or 0) + n
    BUMPS[active] = (BUMPS[active] or 0) + n
    run['n:queued'], run['n:running'], run.active = run['n:queued'] - n, run['n:running'] + n, run.active + n
    run.touched = true
end

-- Removes an unfinished job from its place.
function Job.leave_place(job)
    if job.state == 'queued' then
        call('ZREM', Job.wait_key(job), job.tag)
    elseif job.state == 'delayed' then
        call('ZREM', PREFIX .. 'delayed', job.id)
    elseif Queue.repairing('leases', call, 'ZREM', PREFIX .. 'leases', job.id) == 1 or
        call('ZREM', PREFIX .. 'sharded', job.id) == 0 then
        Job.active(job, -1) -- A job in neither set lost its lease together with the key.
    end
    Job.count(job, job.state, -1)
end

--[[
Moves a job to queued, delayed (at: when it is due), running (at: when to check its lease) or sharded. more: further
fields of its hash. It keeps the sets, the counts and the ready sets in agreement, so only the fast paths of a claim and of
a batch move a job in another way.
--]]
function Job.place(job, to, at, more)
    local was_running = job.state == 'running'
    if OPEN[job.state] then
        Job.leave_place(job)
    end
    local fields = more or {}
    local n = fields[1] == 'state' and 0 or #fields -- A new job has the state as its first field, which is found fastest.
    job.state = to == 'sharded' and 'running' or to
    fields[n + 1], fields[n + 2] = 'state', job.state
    call('HSET', job.key or PREFIX .. 'job:' .. job.id, unpack(fields))
    if to == 'queued' then
        call('ZADD', Job.wait_key(job), job.place, job.tag)
    elseif to == 'delayed' then
        call('ZADD', PREFIX .. 'delayed', at, job.id)
    elseif to == 'running' then
        Queue.repairing('leases', call, 'ZADD', PREFIX .. 'leases', at, job.id)
        Job.active(job, 1)
    else
        call('ZADD', PREFIX .. 'sharded', job.place, job.id)
    end
    Job.count(job, job.state, 1)
    local ready, before = Flow.settle(job.flow, job.class, job.priority, nil, to == 'queued')
    if ready and to == 'queued' and not before then
        Flow.wake(job.class) -- If the flow was ready before, each claim passes the wake on.
    end
    if was_running then
        Flow.slot_freed(job.run)
    end
end

function Job.queue(job, more)
    local fields = more or {}
    fields[#fields + 1] = 'queued'
    fields[#fields + 1] = NOW_TEXT
    Job.place(job, 'queued', nil, fields)
end

-- The last call of an attempt and its answer. If the call is repeated, it gets the same answer.
function Job.last_word(job, word)
    return job.token .. ' ' .. word
end

function Job.repeated_word(job, token, verb_name)
    if not job.last or token == '' then
        return nil
    end
    local last_token, word, rest = job.last:match('^(%S+) (%S+) ?(.*)$')
    if last_token == token and word == verb_name then
        return rest
    end
    return nil
end

-- Removes all shards of a job from their places.
function Job.drop_shards(parent)
    local count = tonumber(parent.shards)
    if not count then
        return
    end
    for k = 0, math.min(count, 1024) - 1 do
        local id = parent.id .. '@' .. k
        local ok, shard = pcall(Job.load, id)
        if ok and shard and OPEN[shard.state] and Job.is_sane(shard) then
            Job.leave_place(shard)
        end
        call('UNLINK', PREFIX .. 'job:' .. id, PREFIX .. 'log:' .. id)
    end
    call('UNLINK', PREFIX .. 'part:' .. parent.id)
    Flow.settle(parent.flow, parent.class, parent.priority)
    Flow.slot_freed(parent.run)
end

-- Writes how a job ended into its hash.
function Job.write_end(job, state, reason, last)
    call('HSET', job.key or PREFIX .. 'job:' .. job.id, 'state', state, 'reason', reason,
        'ended', NOW_TEXT, 'token', '', 'last', last)
    job.state, job.reason, job.ended, job.token = state, reason, NOW, nil
end

--[[
Ends a job as done, dead, skipped or cancelled, with an entry in the stream and in the run's index. If a shard ends
otherwise than done, its parent ends too. word: the call to answer alike if it is repeated, or nil. more: further fields
of the hash.
--]]
function Job.finish(job, state, reason, word, more)
    if job.shard then
        local parent = Job.load(job.parent)
        local fields = { 'state', state, 'reason', short_text(reason), 'token', '', 'ended', NOW }
        if word then
            fields[#fields + 1] = 'last'
            fields[#fields + 1] = Job.last_word(job, word)
        end
        Job.leave_place(job)
        job.state = state
        call('HSET', PREFIX .. 'job:' .. job.id, unpack(fields))
        if parent and parent.state == 'running' and state ~= 'done' then
            local tail = call('GET', PREFIX .. 'log:' .. job.id)
            if tail then
                call('SET', PREFIX .. 'log:' .. parent.id, tail)
            end
            Job.finish(parent, state, 'shard ' .. job.shard .. ': ' .. reason)
        else
            Flow.settle(job.flow, job.class, job.priority)
            Flow.slot_freed(job.run)
        end
        return
    end
    local was_running = job.state == 'running'
    if OPEN[job.state] then
        Job.leave_place(job)
    end
    reason = reason ~= '' and short_text(reason) or ''
    if more and more[1] then
        call('HSET', PREFIX .. 'job:' .. job.id, unpack(more))
    end
    Job.write_end(job, state, reason, word and Job.last_word(job, word) or job.last or '')
    call('ZREM', Job.open_key(job), job.tag)
    Queue.note_end(state, job.id)
    Job.count(job, state, 1)
    Results.publish_end(job)
    if job.shards then
        Job.drop_shards(job)
    end
    if was_running and Flow.is_unlimited(job.run) then
        return -- No waiting job moved, and none was held back by a cap or pause.
    end
    Flow.settle(job.flow, job.class, job.priority)
    if was_running then
        Flow.slot_freed(job.run)
    end
end

--[[
Cancels a job. A job with a lease is only marked, and its worker's next heartbeat ends it. Any other job ends at once, in
the given state. Returns the job's state afterwards.
--]]
function Job.cancel(job, state, reason)
    if job.state == 'running' and Queue.repairing('leases', call, 'ZSCORE', PREFIX .. 'leases', job.id) then
        call('HSET', PREFIX .. 'job:' .. job.id, 'cancel', reason)
        return 'running'
    end
    Job.finish(job, state, reason)
    return state
end

--[[
Returns the job if the token holds it, else nil. The second value is the job in both cases. The token of a job that was
taken back stays valid until another claim: the job is then running again, and no attempt is charged.
--]]
function Job.held_by(id, token, more, parsed)
    local job = Job.load(id, more, parsed)
    if not job or not job.token or token == '' or job.token ~= token or not Job.is_sane(job) then
        return nil, job
    end
    if job.state == 'queued' or job.state == 'delayed' then
        Job.place(job, 'running', NOW + (tonumber(job.lease) or Queue.meta().lease_ms), { 'suspect', '' })
        job.suspect = nil
        Queue.bump('regained', 1)
    elseif job.state ~= 'running' then
        return nil, job
    end
    return job, job
end

-- How long to wait before the next attempt: exponential, with jitter from the id, so that different jobs wait differently.
function Job.backoff(id, attempt, base_ms)
    local jitter = tonumber(redis.sha1hex(id .. attempt):sub(1, 4), 16) / 65535
    local wait = base_ms * 4 ^ math.min(math.max(attempt, 1) - 1, 8)
    return math.floor(math.min(wait, BACKOFF_MS_MAX) * (0.8 + 0.4 * jitter))
end

-- Keeps bytes that are not a valid job or result in the stream `bad`, with the reason.
function Queue.add_bad(subject, reason, data)
    local words = { 'XADD', PREFIX .. 'bad', 'MAXLEN', '~', 10000, '*', 'id', tostring(subject):sub(1, 200), 'reason',
        tostring(reason):sub(1, 200), 'data', tostring(data or ''):sub(1, 4096) }
    local ok, problem = pcall(call, unpack(words))
    if not ok and wrong_type(problem) then -- Not Queue.repairing(), which calls this function.
        call('UNLINK', PREFIX .. 'bad')
        call(unpack(words))
    elseif not ok then
        error(problem, 0)
    end
    Queue.bump('bad_entries', 1)
end

Queue.AFTER_REPAIR = {} -- By key name: a function to call after the key was lost.

--[[
Calls command, which uses only the key of this name, and returns its reply. If the key has another type, it is removed
first, because it would block the whole queue; its text is kept in the stream `bad`.
--]]
function Queue.repairing(name, command, ...)
    local ok, reply = pcall(command, ...)
    if ok then
        return reply
    end
    if not wrong_type(reply) then
        error(reply, 0)
    end
    local _, text = pcall(call, 'GET', PREFIX .. name)
    Queue.add_bad(name, 'the key was of another type and is made anew: ' .. error_said(reply),
        type(text) == 'string' and text or '')
    call('UNLINK', PREFIX .. name)
    if Queue.AFTER_REPAIR[name] then
        Queue.AFTER_REPAIR[name]()
    end
    return command(...)
end

--[[
Removes an invalid job from every place. Its hash becomes `bad`, so that it is not counted as waiting, and stays for
people to look at as long as a dead job's. Its row in the run's index lets `forget` find it. count_name: the counter of
`PREFIX n` that has the job, or nil.
--]]
function Job.set_aside(id, reason, class, count_name)
    local key = Job.parse(id)
    Queue.add_bad(id, reason, '')
    for _, set in ipairs({ 'delayed', 'leases', 'sharded' }) do
        pcall(call, 'ZREM', PREFIX .. set, id)
    end
    if not key then
        return
    end
    for _, set in ipairs({ 'open:', 'openkeep:' }) do
        pcall(call, 'ZREM', PREFIX .. set .. key.flow, key.tag)
    end
    if class then
        for band = 0, 3 do
            pcall(call, 'ZREM', PREFIX .. 'wait:' .. key.flow .. ':' .. class .. ':' .. band, key.tag)
            pcall(call, 'ZREM', PREFIX .. 'begun:' .. key.flow .. ':' .. class .. ':' .. band, key.tag)
        end
    end
    if count_name and not key.shard then
        Queue.bump(count_name, -1)
        Queue.bump('bad', 1)
        Flow.bump_run(key.run, 'n:' .. count_name:match('^%a+'), -1)
    end
    pcall(call, 'HSET', PREFIX .. 'job:' .. id, 'state', 'bad', 'reason', short_text(reason), 'token', '')
    if not key.shard then -- A shard is removed with its job.
        pcall(call, 'ZADD', PREFIX .. 'ended:bad', NOW_TEXT, id)
        pcall(call, 'RPUSH', PREFIX .. 'index:' .. key.run, Results.index_row(id, ''))
    end
end
