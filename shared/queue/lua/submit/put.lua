--[[
put: submits by hand, as JSON: redis-cli FCALL evalq_v1_put 1 'evalq:{main}:' '{"run":"a","step":1,...}'.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] json   one object with the field names of the message; run, step, suite, root and path are needed

Returns submit's reply.
Cost    submit's.
--]]
local TEXTS = { 'run', 'variant', 'suite', 'root', 'path', 'pin', 'format', 'fingerprint', 'manifest', 'host' }
local MAPS = { 'params', 'trackers', 'tags' }

-- Compares by bytes, as C does. Lua's own comparison depends on Redis' locale.
local function bytes_before(a, b)
    for i = 1, math.min(#a, #b) do
        local left, right = byte(a, i), byte(b, i)
        if left ~= right then
            return left < right
        end
    end
    return #a < #b
end

-- The canonical text of a message's needs, which is part of a class's name.
function Submit.needs_text(needs)
    local parts = {}
    if type(needs) ~= 'table' then
        refuse('needs must be an object of gpus, gpu_memory_bytes and labels')
    end
    for field in pairs(needs) do
        if field ~= 'gpus' and field ~= 'gpu_memory_bytes' and field ~= 'labels' then
            refuse('needs must be an object of gpus, gpu_memory_bytes and labels')
        end
    end
    local function number(field, word)
        local value = needs[field]
        if value ~= nil and not (type(value) == 'number' and value >= 0 and value % 1 == 0 and value < 2 ^ 53) then
            refuse('needs.' .. field .. ' must be a whole number')
        end
        if value and value > 0 then
            parts[#parts + 1] = word .. '=' .. text_of(value)
        end
    end
    number('gpus', 'gpus')
    number('gpu_memory_bytes', 'gpu_memory')
    local labels, seen = {}, {}
    if needs.labels ~= nil and type(needs.labels) ~= 'table' then
        refuse('needs.labels must be a list of texts')
    end
    for _, label in ipairs(needs.labels or {}) do
        if not name_ok(label, 64) then
            refuse('a label must be 1 to 64 of [A-Za-z0-9._-]')
        end
        labels[#labels + 1] = not seen[label] and label or nil
        seen[label] = true
    end
    table.sort(labels, bytes_before)
    if #labels > 0 then
        parts[#parts + 1] = 'labels=' .. table.concat(labels, '+')
    end
    return table.concat(parts, ',')
end

-- Returns the message with its defaults. Raises an error that names a field of the wrong type.
local function message_of(given)
    local message = { version = 1, variant = 'regular', created_ms = NOW }
    for _, field in ipairs(TEXTS) do
        local value = given[field]
        if value ~= nil and (type(value) ~= 'string' or #value > 16384) then
            refuse(field .. ' must be text')
        end
        message[field] = value or message[field]
    end
    for _, field in ipairs({ 'session_ms', 'step', 'priority', 'created_ms' }) do
        local value = given[field]
        if value ~= nil and not (type(value) == 'number' and value >= 0 and value % 1 == 0 and value < 2 ^ 53) then
            refuse(field .. ' must be a whole number')
        end
        message[field] = value or message[field]
    end
    for _, field in ipairs(MAPS) do
        local map = given[field]
        if map ~= nil and type(map) ~= 'table' then
            refuse(field .. ' must be an object of texts')
        end
        for key, value in pairs(map or {}) do
            if type(key) ~= 'string' or (type(value) ~= 'string' and type(value) ~= 'number') then
                refuse(field .. ' must be an object of texts')
            end
            message[field] = message[field] or {}
            message[field][key] = tostring(value)
        end
    end
    if given.epoch ~= nil and type(given.epoch) ~= 'number' then
        refuse('epoch must be a number')
    end
    if given.keep ~= nil and type(given.keep) ~= 'boolean' and given.keep ~= 0 and given.keep ~= 1 then
        refuse('keep must be true or false')
    end
    message.epoch = given.epoch
    message.policy = given.policy or 'all'
    message.keep = given.keep == true or given.keep == 1
    return message
end

verb('put', 'submit', function(args)
    args_exactly(args, 1, 'json')
    local ok, given = pcall(cjson.decode, #args[1] <= 65536 and args[1] or '')
    if not ok or type(given) ~= 'table' then
        refuse('the argument must be one JSON object of at most 65536 bytes')
    end
    for key, value in pairs(given) do
        if value == cjson.null then
            given[key] = nil
        end
    end
    local message = message_of(given)
    for _, field in ipairs({ 'run', 'step', 'suite', 'root', 'path' }) do
        if message[field] == nil then
            refuse('the field ' .. field .. ' is missing')
        end
    end
    local needs = given.needs
    local text = needs and Submit.needs_text(needs) or ''
    if needs then
        message.needs = { gpus = needs.gpus or 0, gpu_memory_bytes = needs.gpu_memory_bytes or 0 }
        if needs.labels and #needs.labels > 0 then
            message.needs.labels = needs.labels
        end
    end
    local delay = given.delay_ms or 0
    if type(delay) ~= 'number' then
        refuse('delay_ms must be a number')
    end
    local submit, wrong = Submit.read({ message.run, text_of(message.session_ms or 0), text_of(message.step),
        message.variant, message.suite, tostring(message.policy), text_of(message.priority or 2),
        message.keep and '1' or '0', message.fingerprint or '', needs and '1' or '0', text, text_of(delay),
        cmsgpack.pack(message) }, 1)
    if not submit then
        return { 'refused', wrong }
    end
    ARGS = { submit.base } -- The job id, for the message of an error.
    return Submit.one(submit)
end)
