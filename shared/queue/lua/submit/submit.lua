--[[
submit: put one checkpoint x suite into the queue, once.

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
V.SUBMIT_ARGS = 13
V.CLASSES_FULL = 'the queue has ' .. CLASSES_MAX .. ' classes (suite and needs), and none is idle'

local SHAPES, shapes_count = {}, 0 -- By flow, of what was found right: at most 1,000, then anew.

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

-- Whether the arguments from a[at] on are of that shape.
function V.shape_holds(shape, a, at)
    return shape.run == a[at] and shape.session_text == a[at + 1] and shape.variant == a[at + 3] and
        shape.suite == a[at + 4] and shape.policy == a[at + 5] and shape.band == a[at + 6] and shape.keep == a[at + 7] and
        shape.given == a[at + 9] and shape.needs == a[at + 10] and shape.delay_text == a[at + 11]
end

--[[
What a submit whose arguments begin at a[at] has in common with the others of its flow: all but step, fingerprint and record,
checked. The same arguments give the same table, in later calls too: nobody writes into it. Nil and what is wrong with them.
--]]
function V.submit_shape(a, at)
    local run, variant, suite = a[at], a[at + 3], a[at + 4]
    local flow = run .. '/' .. variant .. '/' .. suite
    local shape = SHAPES[flow]
    if shape and V.shape_holds(shape, a, at) then
        return shape
    end
    local band = integer_of(a[at + 6], 0, 3)
    shape = { run = run, session_text = a[at + 1], variant = variant, suite = suite, policy = a[at + 5], band = a[at + 6],
        keep = a[at + 7], given = a[at + 9], needs = a[at + 10], delay_text = a[at + 11], flow = flow,
        session = integer_of(a[at + 1], 0, 9007199254740992), priority = band and text_of(band),
        delay = integer_of(a[at + 11], 0, DELAY_MS_MAX), class_needs = a[at + 9] == '1' and a[at + 10] or '*',
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

function V.print_ok(fingerprint)
    return #fingerprint <= 64 and find(fingerprint, '^%w*$')
end

-- The first byte of a msgpack map of any length.
function V.record_ok(record)
    local first = byte(record)
    return first and ((first >= 128 and first <= 143) or first == 222 or first == 223) and #record <= 65536
end

-- The checked arguments from args[at], or nil and what is wrong with them. shape: theirs, where the caller has it.
function V.submit_read(a, at, shape)
    local wrong
    if not shape then
        shape, wrong = V.submit_shape(a, at)
    end
    local step_text, fingerprint, record = a[at + 2], a[at + 8], a[at + 12]
    local step = integer_of(step_text, 0, SPAN - 1)
    if not wrong and not step then
        wrong = 'step must be an integer from 0 to 2^40 - 1'
    elseif not wrong and not V.print_ok(fingerprint) then
        wrong = 'fingerprint must be at most 64 letters and digits'
    elseif not wrong and not V.record_ok(record) then
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

function V.flow_load(flow)
    local record = FLOWS[flow]
    if not record then
        local v = call('HMGET', P .. 'flow:' .. flow, 'policy', 'session', 'ord', 'top', 'gens', 'ledger', 'submitted')
        record = { policy = v[1] or nil, session = tonumber(v[2]) or -1, ord = tonumber(v[3]) or 0,
            top = tonumber(v[4]) or -1, gens = v[5], ledger = v[6], submitted = v[7] and tonumber(v[7]) or 0, ready = false,
            noted = false, other = false, higher = false }
        if not v[7] then -- Of a flow that was seen before the epoch has been made.
            Q.epoch_ensure('grow')
        end
        FLOWS[flow] = record
    end
    return record
end

-- The place of a step in its flow: newer session, then higher step. An older session that comes late is one below.
function V.place_of(flow, session, step)
    local ord = flow.ord
    if session > flow.session then
        ord = math.min(flow.ord + 1, 8190)
    elseif session < flow.session then
        ord = math.max(flow.ord - 1, 0)
    end
    return ord * SPAN + step, ord
end

-- What is known of the checkpoint: its newest generation, and that one's job or ledger entry. none: it has no first job.
local function known(s, flow, none)
    local gen = flow.gens and tonumber(call('HGET', P .. 'gens:' .. s.flow, s.step)) or 1
    local id = gen > 1 and s.base .. '~' .. gen or s.base
    if not (none and gen == 1) and call('EXISTS', P .. 'job:' .. id) == 1 then
        local j = J.load(id)
        if not j then
            error('EVQ_CORRUPT \'' .. id .. '\' has a key that holds no job', 0)
        end
        return gen, id, j, j.state, j.fingerprint or ''
    end
    local entry = flow.ledger and call('HGET', P .. 'ledger:' .. s.flow, s.step)
    if entry then
        local old_gen, fingerprint, state = entry:match('^(%d+) (%w*) (%a+)$')
        if old_gen then
            gen = tonumber(old_gen)
            return gen, gen > 1 and s.base .. '~' .. gen or s.base, nil, state, fingerprint
        end
    end
    return gen, id, nil, nil, nil
end

-- Notes a submit in its flow: only what changes is written, once, at the end of the call.
function V.flow_note(s, flow, place, ord)
    if s.policy ~= flow.policy or s.session > flow.session then
        flow.other = true
    elseif place > flow.top then
        flow.higher = true
    end
    flow.noted = true
    if NOW - flow.submitted > 60000 or NOW < flow.submitted then
        call('ZADD', P .. 'flows', NOW_TEXT, s.flow)
        call('ZADD', P .. 'runs', NOW_TEXT, s.run)
        call('SADD', P .. 'runflows:' .. s.run, s.flow)
    end
    flow.policy, flow.submitted, flow.top = s.policy, NOW, max(flow.top, place)
    if s.session > flow.session then
        flow.session, flow.ord = s.session, ord
    end
end

-- Makes the submit a new job, and the fields of its hash; also adopt's and retry's. place: as text.
function V.job_new(s, id, gen, class, place)
    s.place, s.id, s.gen, s.class, s.attempts = place, id, gen, class, 0
    s.tag = gen > 1 and s.step .. '~' .. gen or s.step
    local fields
    if s.fingerprint ~= '' then
        fields = { 'state', 'queued', 'run', s.run, 'step', s.step, 'variant', s.variant, 'suite', s.suite, 'class', class,
            'priority', s.priority, 'place', s.place, 'submitted', NOW_TEXT, 'fingerprint', s.fingerprint }
    else
        fields = { 'state', 'queued', 'run', s.run, 'step', s.step, 'variant', s.variant, 'suite', s.suite, 'class', class,
            'priority', s.priority, 'place', s.place, 'submitted', NOW_TEXT }
    end
    if s.keep == '1' then
        fields[#fields + 1] = 'keep'
        fields[#fields + 1] = '1'
    end
    return s, fields
end

local CLEARED = { 'attempts', 'crashes', 'crashed_on', 'lost', 'incomplete', 'alone', 'reason', 'suspect', 'hb',
    'worker', 'last', 'due', 'keep', 'fingerprint', 'started', 'status', 'progress', 'total' }

-- A waiting job takes the new record: other weights, so nothing of its past counts, and no old token.
local function replace(s, j, class, place, policy)
    J.leave(j)
    F.settle(j.flow, j.class, j.priority)
    call('ZREM', J.open_key(j), j.tag)
    call('HDEL', P .. 'job:' .. j.id, unpack(CLEARED))
    local fresh, fields = V.job_new(s, j.id, j.gen, class, text_of(place))
    fields[#fields + 1] = 'token'
    fields[#fields + 1] = ''
    call('SET', P .. 'msg:' .. j.id, s.record)
    V.enter(s, fresh, fields, place, policy)
    return fresh
end

-- Into its first place.
function V.enter(s, j, fields, place, policy)
    call('ZADD', J.open_key(j), j.place, j.tag)
    if s.delay > 0 then
        fields[#fields + 1] = 'due'
        fields[#fields + 1] = NOW + s.delay
        J.place(j, 'delayed', NOW + s.delay, fields)
        return
    end
    J.place(j, 'queued', nil, fields)
    if policy == 'backfill' then
        F.backfill.note(j.flow, j.class, j.priority, place)
    end
end

-- none: the caller knows that the checkpoint's first job is not there.
function V.submit_one(s, none)
    local flow = V.flow_load(s.flow)
    local gen, id, j, state, fingerprint = known(s, flow, none)
    local same = fingerprint == s.fingerprint or fingerprint == '' or s.fingerprint == ''
    if same and (OPEN[state] or ENDED[state]) then -- What was set aside is followed, whatever its content.
        return { 'duplicate', id, state }
    end
    local class, every = F.class(s.suite, s.class_needs)
    if every > 1 and s.step_number % every ~= 0 and s.keep ~= '1' then
        return { 'skipped', id, 'skipped', 'every' }
    end
    class = class or F.class_make(s.suite, s.class_needs)
    if not class then
        return { 'refused', V.CLASSES_FULL }
    end
    local place, ord = V.place_of(flow, s.session, s.step_number)
    V.flow_note(s, flow, place, ord)
    local answer = 'queued'
    local waits = j and J.sane(j) and (state == 'queued' or state == 'delayed') and not j.shards
    if waits and not (tonumber(j.tasks) and tonumber(j.tasks) > 0) then
        j = replace(s, j, class, place, s.policy)
        answer = 'replaced'
    else
        if state then
            answer = 'followed'
            if waits then -- Part of it is published with weights that are gone.
                J.finish(j, 'skipped', 'changed: the checkpoint was written again')
            end
            gen = gen + 1
            id = s.base .. '~' .. gen
            call('HSET', P .. 'gens:' .. s.flow, s.step, gen)
            if not flow.gens then
                call('HSET', P .. 'flow:' .. s.flow, 'gens', 1)
                flow.gens = '1'
            end
        end
        local fields
        j, fields = V.job_new(s, id, gen, class, text_of(place))
        call('SET', P .. 'msg:' .. id, s.record)
        if s.policy == 'latest' and place < flow.top and s.keep ~= '1' then
            local reason = 'superseded by step ' .. text_of(flow.top % SPAN)
            J.finish(j, 'skipped', reason, nil, fields)
            Q.bump('submitted', 1)
            return { 'skipped', id, 'skipped', reason }
        end
        V.enter(s, j, fields, place, s.policy)
        Q.bump('submitted', 1) -- Last: one that fails counts nowhere.
    end
    if s.policy == 'latest' and place >= flow.top then
        F.supersede(s.flow, place)
    end
    return { answer, id, j.state }
end

verb('submit', 'submit', function(args)
    args_exactly(args, V.SUBMIT_ARGS, 'run session step variant suite policy band keep fingerprint given needs delay record')
    local s, wrong = V.submit_read(args, 1)
    if not s then
        return { 'refused', wrong }
    end
    return V.submit_one(s)
end)
