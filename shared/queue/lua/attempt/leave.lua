--[[
leave: removes a worker that stops. It has completed or released its jobs before.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] worker id of the process

Returns "ok".
Cost    O(log W).
--]]
verb('leave', 'drain', function(args)
    args_exactly(args, 1, 'worker')
    local worker = label_arg(args, 1, 64, 'worker')
    call('UNLINK', PREFIX .. 'worker:' .. worker)
    call('ZREM', PREFIX .. 'workers', worker)
    if Queue.meta().idle_until > NOW then
        call('UNLINK', PREFIX .. 'idle') -- The marks do not name their worker, so all go; the others set theirs again.
    end
    return 'ok'
end)
