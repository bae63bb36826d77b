--[[
show: returns everything about one job, for people.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job or shard

Returns JSON {"id", "job": {hash}, "why", "blocked", "message", "detail", "tasks": {task: result}, "parts"}, or nil.
        blocked: the job waits for something other than its turn, its time or its end.
Cost    O(tasks), and of a queued one O(workers), at most 256.
--]]
verb('show', 'ro', function(args)
    args_exactly(args, 1, 'id')
    local key = Job.parse(args[1])
    if not key then
        return false
    end
    local hash = Results.map(call('HGETALL', PREFIX .. 'job:' .. args[1]))
    if not hash.state then
        local entry = call('HGET', PREFIX .. 'ledger:' .. key.flow, key.step)
        local gen, fingerprint, state = (entry or ''):match('^(%d+) (%w*) (%a+)$')
        if tonumber(gen) ~= key.gen or key.shard then
            return false
        end
        return View.json({ id = args[1], job = { state = state, fingerprint = fingerprint },
            why = 'its record was removed by retention' })
    end
    local view = { id = args[1], job = View.printable(hash), why = '' }
    local job = Job.load(args[1])
    if Job.is_sane(job) then
        -- Reads all workers only for a queued job, because programs often ask for ended jobs.
        local known, why, blocked = pcall(View.why_it_waits, job, job.state == 'queued' and View.workers() or {})
        view.why = known and why or error_text(why, job.id) -- A key of another type is a reason, too.
        view.blocked = not known or blocked or false
        view.class = known and { View.class_of(job.class) } or { job.suite, '' }
    end
    local record = call('GET', PREFIX .. 'msg:' .. (key.parent or args[1]))
    view.message = record and View.unpacked(record) or 'missing'
    if type(view.message) == 'table' and type(view.message.snapshot) == 'table' then
        view.message.snapshot.token = nil -- Who knows it can have the weights: views end up in logs.
    end
    local detail = call('GET', PREFIX .. 'log:' .. args[1])
    view.detail = detail and View.printable(detail) or ''
    view.tasks = {}
    local results = call('HGETALL', PREFIX .. 'res:' .. args[1])
    for i = 1, #results, 2 do
        view.tasks[results[i]] = View.unpacked(results[i + 1])
    end
    return View.json(view)
end)
