--[[
Plain submits: those that make new jobs of a flow to which an earlier submit of the same call was `queued`, one like the other.
What cannot differ between them and that one is not looked up again, and what goes under one key is gathered. A submit is plain
when its policy is `all`, nothing of its checkpoint is known, it is due now, and its step is above those before it. Any other
goes through V.submit_one(), after what was gathered is written.
--]]
V.plain = {}

-- A call's n submits from args[from] on: their shapes, and whether none of their jobs is there. Those out of shape are answered.
function V.plain.read(args, from, n)
    local c = { args = args, from = from, shapes = {}, keys = {}, replies = {}, groups = {}, none = false }
    local shapes, keys, all = c.shapes, c.keys, {}
    local shape, wrong
    for i = 1, n do
        local at = from + (i - 1) * V.SUBMIT_ARGS
        local step, key = args[at + 2], false
        if not shape or not V.shape_holds(shape, args, at) then
            shape, wrong = V.submit_shape(args, at)
        end
        if not shape then
            c.replies[i] = { 'refused', wrong }
        elseif find(step, '^[1-9]%d*$') and #step <= 12 then -- Below 2^40, and written as it is kept.
            key = P .. 'job:' .. shape.head .. step .. shape.rest
            all[#all + 1] = key
        end
        shapes[i], keys[i] = shape or false, key
    end
    c.none = #all > 0 and call('EXISTS', unpack(all)) == 0
    return c
end

-- The jobs of a flow that are to be written together: those like the flow's first one of this call.
local function group_open(flow, shape)
    local first = flow.first
    local _, every = F.class(first.suite, first.class_needs)
    flow.group = { flow = flow, like = first, every = shape.keep == '1' and 1 or every,
        base = tonumber(first.place) - first.step_number, last = first.step_number, count = 0, places = {}, at = {} }
    return flow.group
end

-- Whether the call's submit i is plain: then it is among those to be written.
function V.plain.take(c, i)
    local key, shape = c.keys[i], c.shapes[i]
    local flow = key and FLOWS[shape.flow]
    if not flow or flow.like ~= shape then
        return false
    end
    local group = flow.group or group_open(flow, shape)
    local args, at = c.args, c.from + (i - 1) * V.SUBMIT_ARGS
    local step_text, fingerprint = args[at + 2], args[at + 8]
    local step = tonumber(step_text)
    if step <= group.last or step % group.every ~= 0 or fingerprint == '' or not V.print_ok(fingerprint) or
        not V.record_ok(args[at + 12]) or not flow.none and call('EXISTS', key) == 1 then
        return false
    end
    local places, count = group.places, group.count
    if count == 0 then
        c.groups[#c.groups + 1] = group
    end
    places[2 * count + 1], places[2 * count + 2] = text_of(group.base + step), step_text
    group.at[count + 1], group.count, group.last = i, count + 1, step
    return true
end

-- As V.submit_one() would have made them one by one. The sets are there, and the hashes are not: nothing here fails.
local function group_write(c, group)
    local args, places, flow, slots = c.args, group.places, group.flow, {}
    local shape = flow.like
    local j, fields = V.job_new(group.like, group.like.base, 1, group.like.class, places[1])
    for k = 1, #fields, 2 do
        slots[fields[k]] = k + 1
    end
    local step_at, place_at, print_at = slots.step, slots.place, slots.fingerprint
    V.flow_note(shape, flow, group.base + group.last)
    call('ZADD', J.open_key(j), unpack(places))
    call('ZADD', J.wait_key(j), unpack(places))
    for k = 1, group.count do
        local i = group.at[k]
        local at, step = c.from + (i - 1) * V.SUBMIT_ARGS, places[2 * k]
        local id = shape.head .. step .. shape.rest
        fields[step_at], fields[place_at], fields[print_at] = step, places[2 * k - 1], args[at + 8]
        call('SET', P .. 'msg:' .. id, args[at + 12])
        call('HSET', c.keys[i], unpack(fields))
        c.replies[i] = { 'queued', id, 'queued' }
    end
    Q.bump('submitted', group.count)
    J.count(j, 'queued', group.count)
    group.count, group.places, group.at = 0, {}, {}
end

function V.plain.write(c)
    for i = 1, #c.groups do
        group_write(c, c.groups[i])
        c.groups[i] = nil
    end
end

-- The call's submit i by itself.
function V.plain.other(c, i)
    V.plain.write(c)
    local shape = c.shapes[i]
    local s, wrong = V.submit_read(c.args, c.from + (i - 1) * V.SUBMIT_ARGS, shape)
    if not s then
        c.replies[i] = { 'refused', wrong }
        return
    end
    local none = c.none and not FLOWS[s.flow]
    local ok, reply = pcall(V.submit_one, s, none and c.keys[i]) -- Whether one without a key is there, nobody asked.
    c.replies[i] = ok and reply or { 'refused', error_text(reply) }
    local flow = FLOWS[s.flow]
    if flow then
        flow.like, flow.group, flow.none = nil, nil, none
        if ok and reply[1] == 'queued' and s.policy == 'all' and s.delay == 0 and s.fingerprint ~= '' and not flow.gens and
            not flow.ledger then
            flow.like, flow.first = shape, s
        end
    end
end
