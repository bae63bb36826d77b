--[[
PlainSubmits: a fast path of submit_batch. A submit is plain if it follows a queued submit of the same flow in the same call,
its policy is `all`, its checkpoint is new, it is due now, and its step is higher. Then nothing about the flow is read again,
and the entries of one key are written together. Every other submit goes through Submit.one(), after the collected entries
were written.
--]]
-- Reads the n submits that begin at args[from]: their shapes, and whether none of their jobs exists. Refuses invalid ones.
function PlainSubmits.read(args, from, n)
    local batch = { args = args, from = from, shapes = {}, keys = {}, replies = {}, groups = {}, none = false }
    local shapes, keys, all = batch.shapes, batch.keys, {}
    local shape, wrong
    for i = 1, n do
        local at = from + (i - 1) * Submit.ARGS_COUNT
        local step, key = args[at + 2], false
        if not shape or not Submit.shape_holds(shape, args, at) then
            shape, wrong = Submit.shape(args, at)
        end
        if not shape then
            batch.replies[i] = { 'refused', wrong }
        elseif find(step, '^[1-9]%d*$') and #step <= 12 then -- Below 2^40, and written as it is kept.
            key = PREFIX .. 'job:' .. shape.head .. step .. shape.rest
            all[#all + 1] = key
        end
        shapes[i], keys[i] = shape or false, key
    end
    batch.none = #all > 0 and call('EXISTS', unpack(all)) == 0
    return batch
end

-- Begins a group of jobs to write together: those like the flow's first job of this call.
local function group_open(flow, shape)
    local first = flow.first
    local _, every = Flow.class(first.suite, first.class_needs)
    flow.group = { flow = flow, like = first, every = shape.keep == '1' and 1 or every,
        base = tonumber(first.place) - first.step_number, last = first.step_number, count = 0, places = {}, at = {} }
    return flow.group
end

-- Takes submit i if it is plain. Returns whether it is.
function PlainSubmits.take(batch, i)
    local key, shape = batch.keys[i], batch.shapes[i]
    local flow = key and FLOWS[shape.flow]
    if not flow or flow.like ~= shape then
        return false
    end
    local group = flow.group or group_open(flow, shape)
    local args, at = batch.args, batch.from + (i - 1) * Submit.ARGS_COUNT
    local step_text, fingerprint = args[at + 2], args[at + 8]
    local step = tonumber(step_text)
    if step <= group.last or step % group.every ~= 0 or fingerprint == '' or not Submit.fingerprint_ok(fingerprint) or
        not Submit.record_ok(args[at + 12]) or not flow.none and call('EXISTS', key) == 1 then
        return false
    end
    local places, count = group.places, group.count
    if count == 0 then
        batch.groups[#batch.groups + 1] = group
    end
    places[2 * count + 1], places[2 * count + 2] = text_of(group.base + step), step_text
    group.at[count + 1], group.count, group.last = i, count + 1, step
    return true
end

-- Writes the group as Submit.one() would have done one by one. No command fails: the sets exist and the hashes do not.
local function group_write(batch, group)
    local args, places, flow, slots = batch.args, group.places, group.flow, {}
    local shape = flow.like
    local job, fields = Submit.new_job(group.like, group.like.base, 1, group.like.class, places[1])
    for k = 1, #fields, 2 do
        slots[fields[k]] = k + 1
    end
    local step_at, place_at, print_at = slots.step, slots.place, slots.fingerprint
    Submit.note_flow(shape, flow, group.base + group.last)
    call('ZADD', Job.open_key(job), unpack(places))
    call('ZADD', Job.wait_key(job), unpack(places))
    for k = 1, group.count do
        local i = group.at[k]
        local at, step = batch.from + (i - 1) * Submit.ARGS_COUNT, places[2 * k]
        local id = shape.head .. step .. shape.rest
        fields[step_at], fields[place_at], fields[print_at] = step, places[2 * k - 1], args[at + 8]
        call('SET', PREFIX .. 'msg:' .. id, args[at + 12])
        call('HSET', batch.keys[i], unpack(fields))
        batch.replies[i] = { 'queued', id, 'queued' }
    end
    Queue.bump('submitted', group.count)
    Job.count(job, 'queued', group.count)
    group.count, group.places, group.at = 0, {}, {}
end

function PlainSubmits.write(batch)
    for i = 1, #batch.groups do
        group_write(batch, batch.groups[i])
        batch.groups[i] = nil
    end
end

-- Handles submit i, which is not plain.
function PlainSubmits.other(batch, i)
    PlainSubmits.write(batch)
    local shape = batch.shapes[i]
    local submit, wrong = Submit.read(batch.args, batch.from + (i - 1) * Submit.ARGS_COUNT, shape)
    if not submit then
        batch.replies[i] = { 'refused', wrong }
        return
    end
    local none = batch.none and not FLOWS[submit.flow]
    local ok, reply = pcall(Submit.one, submit, none and batch.keys[i]) -- Without a key, nobody checked whether the job exists.
    batch.replies[i] = ok and reply or { 'refused', error_text(reply) }
    local flow = FLOWS[submit.flow]
    if flow then
        flow.like, flow.group, flow.none = nil, nil, none
        if ok and reply[1] == 'queued' and submit.policy == 'all' and submit.delay == 0 and submit.fingerprint ~= '' and
                not flow.gens and
            not flow.ledger then
            flow.like, flow.first = shape, submit
        end
    end
end
