--[[
info: returns what this queue is and what it runs on.

KEYS[1] prefix "evalq:{queue}:"

Returns {major, build, epoch, now, lease_ms, heartbeat_ms}; epoch "" before the first write.
Cost    O(1).
--]]
function View.info()
    local meta = Queue.meta()
    return { text_of(MAJOR), text_of(BUILD), meta.epoch, text_of(NOW), text_of(meta.lease_ms),
        text_of(meta.heartbeat_ms) }
end

verb('info', 'ro', function(args)
    args_exactly(args, 0, 'none')
    return View.info()
end)
