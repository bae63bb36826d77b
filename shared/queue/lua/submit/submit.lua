--[[
submit: puts one checkpoint and suite into the queue, once.

KEYS[1] prefix      "evalq:{queue}:"
ARGV[1] run         1 to 64 of [A-Za-z0-9._-]
ARGV[2] session     unix ms at which the training process began
ARGV[3] step        0 to 2^40 - 1
ARGV[4] variant     1 to 32 of [A-Za-z0-9._-]
ARGV[5] suite       1 to 32 of [A-Za-z0-9._-]
ARGV[6] policy      all, latest or backfill: becomes the flow's
ARGV[7] band        0 urgent to 3 backfill
ARGV[8] keep        1: never superseded, and due at every step
ARGV[9] fingerprint "" (unknown: equals any) or up to 64 characters
ARGV[10] given      1: needs are the message's own; 0: the suite's, as its workers register it
ARGV[11] needs      canonical text, at most 255 bytes without blanks
ARGV[12] delay_ms   0 to 30 days
ARGV[13] record     the message, a msgpack map of at most 64 KiB

Returns {"queued" | "duplicate" | "replaced" | "followed" | "skipped", id, state, reason} or {"refused", reason}.
Holds   one job per (id, fingerprint); a refused or duplicate submit changes nothing.
Cost    O(log n); under `latest` at most 100 superseded jobs besides.
--]]
Submit.ARGS_COUNT = 13
Submit.CLASSES_FULL = 'the queue has ' .. CLASSES_MAX .. ' classes (suite and needs), and none is idle'

local SHAPES, shapes_count = {}, 0 -- A cache of valid shapes by flow. It is emptied when it has 1,000.

local function shape_wrong(shape)
    if not name_ok(shape.run, 64) then
        return 'run must be 1 to 64 of [A-Za-z0-9._-]'
    elseif not name_ok(shape.variant, 32) then
        return 'variant must be 1 to 32 of [A-Za-z0-9._-]'
    elseif not name_ok(shape.suite, 32) then
        return 'suite must be 1 to 32 of [A-Za-z0-9._-]'
    elseif not shape.session then
        return 'session must be unix ms'
    elseif shape.policy ~= 'all' and shape.policy ~= 'latest' and shape.policy ~= 'backfill' then
        return 'policy must be all, latest or backfill'
    elseif not shape.priority then
        return 'priority must be 0 to 3'
    elseif (shape.keep ~= '0' and shape.keep ~= '1') or (shape.given ~= '0' and shape.given ~= '1') then
        return 'keep and needs_given must be 0 or 1'
    elseif shape.needs ~= '' and (#shape.needs > 255 or find(shape.needs, '[%s%c*]')) then
        return 'needs must be at most 255 bytes without blanks'
    elseif not shape.delay then
        return 'delay_ms must be 0 to 30 days'
    end
    return nil
end

-- Whether the arguments from args[at] on have this shape.
function Submit.shape_holds(shape, args, at)
    return shape.run == args[at] and shape.session_text == args[at + 1] and shape.variant == args[at + 3] and
        shape.suite == args[at + 4] and shape.policy == args[at + 5] and shape.band == args[at + 6] and
            shape.keep == args[at + 7] and
        shape.given == args[at + 9] and shape.needs == args[at + 10] and shape.delay_text == args[at + 11]
end

--[[
What a submit whose arguments begin at a[at] has in common with the others of its flow: all but step, fingerprint and
record, checked. The same arguments give the same table, in later calls too: nobody writes into it. Nil and what is
wrong with them.
--]]
function Submit.shape(args, at)
    local run, variant, suite = args[at], args[at + 3], args[at + 4]
    local flow = run .. '/' .. variant .. '/' .. suite
    local shape = SHAPES[flow]
    if shape and Submit.shape_holds(shape, args, at) then
        return shape
    end
    local band = integer_of(args[at + 6], 0, 3)
    shape = { run = run, session_text = args[at + 1], variant = variant, suite = suite, policy = args[at + 5], band = args[at + 6],
        keep = args[at + 7], given = args[at + 9], needs = args[at + 10], delay_text = args[at + 11], flow = flow,
        session = integer_of(args[at + 1], 0, 9007199254740992), priority = band and text_of(band),
        delay = integer_of(args[at + 11], 0, DELAY_MS_MAX), class_needs = args[at + 9] == '1' and args[at + 10] or '*',
        head = run .. '/', rest = '/' .. variant .. '/' .. suite }
    local wrong = shape_wrong(shape)
    if wrong then
        return nil, wrong
    end
    if shapes_count >= 1000 then
        SHAPES, shapes_count = {}, 0
    end
    SHAPES[flow], shapes_count = shape, shapes_count + 1
    return shape
end

function Submit.fingerprint_ok(fingerprint)
    return #fingerprint <= 64 and find(fingerprint, '^%w*$')
end

-- Whether the record begins like a msgpack map and is not too long.
function Submit.record_ok(record)
    local first = byte(record)
    return first and ((first >= 128 and first <= 143) or first == 222 or first == 223) and #record <= 65536
end

-- Reads the arguments from args[at] on. Nil and a sentence: one is invalid. shape: theirs, if the caller has it.
function Submit.read(args, at, shape)
    local wrong
    if not shape then
        shape, wrong = Submit.shape(args, at)
    end
    local step_text, fingerprint, record = args[at + 2], args[at + 8], args[at + 12]
    local step = integer_of(step_text, 0, SPAN - 1)
    if not wrong and not step then
        wrong = 'step must be an integer from 0 to 2^40 - 1'
    elseif not wrong and not Submit.fingerprint_ok(fingerprint) then
        wrong = 'fingerprint must be at most 64 letters and digits'
    elseif not wrong and not Submit.record_ok(record) then
        wrong = #record > 65536 and 'the record is longer than 65536 bytes' or 'the record is not a msgpack map'
    end
    if wrong then
        return nil, wrong
    end
    if find(step_text, '^[0-].') then
        step_text = text_of(step)
    end
    return { run = shape.run, session = shape.session, step = step_text, step_number = step, variant = shape.variant,
        suite = shape.suite, policy = shape.policy, priority = shape.priority, keep = shape.keep, fingerprint = fingerprint,
        delay = shape.delay, record = record, flow = shape.flow, base = shape.head .. step_text .. shape.rest,
        class_needs = shape.class_needs, place = false, id = false, tag = false, gen = 1, class = false, attempts = 0,
        state = false }
end

function Submit.load_flow(flow)
    local record = FLOWS[flow]
    if not record then
        local values = call('HMGET', PREFIX .. 'flow:' .. flow, 'policy', 'session', 'ord', 'top', 'gens', 'ledger', 'submitted')
        record = { policy = values[1] or nil, session = tonumber(values[2]) or -1, ord = tonumber(values[3]) or 0,
            top = tonumber(values[4]) or -1, gens = values[5], ledger = values[6], submitted = values[7] and
                tonumber(values[7]) or 0, ready = false,
            noted = false, other = false, higher = false }
        if not values[7] then -- Of a flow that was seen before the epoch has been made.
            Queue.ensure_epoch('grow')
        end
        FLOWS[flow] = record
    end
    return record
end

-- The place of a step in its flow: by session, then by step. A late older session is one below the newest.
function Submit.place_of(flow, session, step)
    local ord = flow.ord
    if session > flow.session then
        ord = math.min(flow.ord + 1, 8190)
    elseif session < flow.session then
        ord = math.max(flow.ord - 1, 0)
    end
    return ord * SPAN + step, ord
end

-- What is known of the checkpoint: its newest generation and that one's job or ledger entry. none: it has no first job.
local function known(submit, flow, none)
    local gen = flow.gens and tonumber(call('HGET', PREFIX .. 'gens:' .. submit.flow, submit.step)) or 1
    local id = gen > 1 and submit.base .. '~' .. gen or submit.base
    if not (none and gen == 1) and call('EXISTS', PREFIX .. 'job:' .. id) == 1 then
        local job = Job.load(id)
        if not job then
            error('EVQ_CORRUPT \'' .. id .. '\' has a key that holds no job', 0)
        end
        return gen, id, job, job.state, job.fingerprint or ''
    end
    local entry = flow.ledger and call('HGET', PREFIX .. 'ledger:' .. submit.flow, submit.step)
    if entry then
        local old_gen, fingerprint, state = entry:match('^(%d+) (%w*) (%a+)$')
        if old_gen then
            gen = tonumber(old_gen)
            return gen, gen > 1 and submit.base .. '~' .. gen or submit.base, nil, state, fingerprint
        end
    end
    return gen, id, nil, nil, nil
end

-- Notes a submit in its flow. Only changes are written, once, at the end of the call.
function Submit.note_flow(submit, flow, place, ord)
    if submit.policy ~= flow.policy or submit.session > flow.session then
        flow.other = true
    elseif place > flow.top then
        flow.higher = true
    end
    flow.noted = true
    if NOW - flow.submitted > 60000 or NOW < flow.submitted then
        call('ZADD', PREFIX .. 'flows', NOW_TEXT, submit.flow)
        call('ZADD', PREFIX .. 'runs', NOW_TEXT, submit.run)
        call('SADD', PREFIX .. 'runflows:' .. submit.run, submit.flow)
    end
    flow.policy, flow.submitted, flow.top = submit.policy, NOW, max(flow.top, place)
    if submit.session > flow.session then
        flow.session, flow.ord = submit.session, ord
    end
end

-- Turns the submit into a new job and returns the fields of its hash. adopt and retry use it too. place: as text.
function Submit.new_job(submit, id, gen, class, place)
    submit.place, submit.id, submit.gen, submit.class, submit.attempts = place, id, gen, class, 0
    submit.tag = gen > 1 and submit.step .. '~' .. gen or submit.step
    local fields
    if submit.fingerprint ~= '' then
        fields = { 'state', 'queued', 'run', submit.run, 'step', submit.step, 'variant', submit.variant, 'suite', submit.suite,
            'class', class,
            'priority', submit.priority, 'place', submit.place, 'submitted', NOW_TEXT, 'fingerprint', submit.fingerprint }
    else
        fields = { 'state', 'queued', 'run', submit.run, 'step', submit.step, 'variant', submit.variant, 'suite', submit.suite,
            'class', class,
            'priority', submit.priority, 'place', submit.place, 'submitted', NOW_TEXT }
    end
    if submit.keep == '1' then
        fields[#fields + 1] = 'keep'
        fields[#fields + 1] = '1'
    end
    return submit, fields
end

local CLEARED = { 'attempts', 'crashes', 'crashed_on', 'lost', 'incomplete', 'alone', 'reason', 'suspect', 'hb',
    'worker', 'last', 'due', 'keep', 'fingerprint', 'started', 'status', 'progress', 'total' }

-- Replaces a waiting job by this submit. The weights differ, so its past and its token are dropped.
local function replace(submit, job, class, place, policy)
    Job.leave_place(job)
    Flow.settle(job.flow, job.class, job.priority)
    call('ZREM', Job.open_key(job), job.tag)
    call('HDEL', PREFIX .. 'job:' .. job.id, unpack(CLEARED))
    local fresh, fields = Submit.new_job(submit, job.id, job.gen, class, text_of(place))
    fields[#fields + 1] = 'token'
    fields[#fields + 1] = ''
    call('SET', PREFIX .. 'msg:' .. job.id, submit.record)
    Submit.enter(submit, fresh, fields, place, policy)
    return fresh
end

-- Puts a new job into its first place.
function Submit.enter(submit, job, fields, place, policy)
    call('ZADD', Job.open_key(job), job.place, job.tag)
    if submit.delay > 0 then
        fields[#fields + 1] = 'due'
        fields[#fields + 1] = NOW + submit.delay
        Job.place(job, 'delayed', NOW + submit.delay, fields)
        return
    end
    Job.place(job, 'queued', nil, fields)
    if policy == 'backfill' then
        Backfill.note(job.flow, job.class, job.priority, place)
    end
end

-- Makes one submit and returns its reply. none: the checkpoint's first job does not exist.
function Submit.one(submit, none)
    local flow = Submit.load_flow(submit.flow)
    local gen, id, job, state, fingerprint = known(submit, flow, none)
    local same = fingerprint == submit.fingerprint or fingerprint == '' or submit.fingerprint == ''
    if same and (OPEN[state] or ENDED[state]) then -- A job that was set aside is followed by a new one.
        return { 'duplicate', id, state }
    end
    local class, every = Flow.class(submit.suite, submit.class_needs)
    if every > 1 and submit.step_number % every ~= 0 and submit.keep ~= '1' then
        return { 'skipped', id, 'skipped', 'every' }
    end
    class = class or Flow.make_class(submit.suite, submit.class_needs)
    if not class then
        return { 'refused', Submit.CLASSES_FULL }
    end
    local place, ord = Submit.place_of(flow, submit.session, submit.step_number)
    Submit.note_flow(submit, flow, place, ord)
    local answer = 'queued'
    local waits = job and Job.is_sane(job) and (state == 'queued' or state == 'delayed') and not job.shards
    if waits and not (tonumber(job.tasks) and tonumber(job.tasks) > 0) then
        job = replace(submit, job, class, place, submit.policy)
        answer = 'replaced'
    else
        if state then
            answer = 'followed'
            if waits then -- Part of it is published with the old weights.
                Job.finish(job, 'skipped', 'changed: the checkpoint was written again')
            end
            gen = gen + 1
            id = submit.base .. '~' .. gen
            call('HSET', PREFIX .. 'gens:' .. submit.flow, submit.step, gen)
            if not flow.gens then
                call('HSET', PREFIX .. 'flow:' .. submit.flow, 'gens', 1)
                flow.gens = '1'
            end
        end
        local fields
        job, fields = Submit.new_job(submit, id, gen, class, text_of(place))
        call('SET', PREFIX .. 'msg:' .. id, submit.record)
        if submit.policy == 'latest' and place < flow.top and submit.keep ~= '1' then
            local reason = 'superseded by step ' .. text_of(flow.top % SPAN)
            Job.finish(job, 'skipped', reason, nil, fields)
            Queue.bump('submitted', 1)
            return { 'skipped', id, 'skipped', reason }
        end
        Submit.enter(submit, job, fields, place, submit.policy)
        Queue.bump('submitted', 1) -- Last: one that fails counts nowhere.
    end
    if submit.policy == 'latest' and place >= flow.top then
        Flow.supersede(submit.flow, place)
    end
    return { answer, id, job.state }
end

verb('submit', 'submit', function(args)
    args_exactly(args, Submit.ARGS_COUNT, 'run session step variant suite policy band keep fingerprint given needs delay record')
    local submit, wrong = Submit.read(args, 1)
    if not submit then
        return { 'refused', wrong }
    end
    return Submit.one(submit)
end)
