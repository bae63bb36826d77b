--[[
show: all that is known of one job, for people.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job or shard

Returns JSON {"id", "job": {hash}, "why", "blocked", "message", "detail", "tasks": {task: result}, "parts"}, or nil.
        blocked: the job waits for something other than its turn, its time or its end.
Cost    O(tasks), and of a queued one O(workers), at most 256.
--]]
verb('show', 'ro', function(args)
    args_exactly(args, 1, 'id')
    local key = J.parse(args[1])
    if not key then
        return false
    end
    local hash = R.map(call('HGETALL', P .. 'job:' .. args[1]))
    if not hash.state then
        local entry = call('HGET', P .. 'ledger:' .. key.flow, key.step)
        local gen, fingerprint, state = (entry or ''):match('^(%d+) (%w*) (%a+)$')
        if tonumber(gen) ~= key.gen or key.shard then
            return false
        end
        return W.json({ id = args[1], job = { state = state, fingerprint = fingerprint },
            why = 'its record was removed by retention' })
    end
    local view = { id = args[1], job = W.plain(hash), why = '' }
    local j = J.load(args[1])
    if J.sane(j) then
        -- All workers are read for one that waits alone: of what it evaluated many ask once it ended.
        local known, why, blocked = pcall(W.why, j, j.state == 'queued' and W.workers() or {})
        view.why = known and why or error_text(why, j.id) -- A key of another type is a reason, too.
        view.blocked = not known or blocked or false
        view.class = known and { W.class_of(j.class) } or { j.suite, '' }
    end
    local record = call('GET', P .. 'msg:' .. (key.parent or args[1]))
    view.message = record and W.unpacked(record) or 'missing'
    if type(view.message) == 'table' and type(view.message.snapshot) == 'table' then
        view.message.snapshot.token = nil -- Who knows it can have the weights: views end up in logs.
    end
    local detail = call('GET', P .. 'log:' .. args[1])
    view.detail = detail and W.plain(detail) or ''
    view.tasks = {}
    local results = call('HGETALL', P .. 'res:' .. args[1])
    for i = 1, #results, 2 do
        view.tasks[results[i]] = W.unpacked(results[i + 1])
    end
    return W.json(view)
end)
