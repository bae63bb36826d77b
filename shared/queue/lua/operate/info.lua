--[[
info: returns what this queue is and what it runs on.

KEYS[1] prefix "evalq:{queue}:"

Returns {major, build, epoch, now, lease_ms, heartbeat_ms}; epoch "" before the first write.
Cost    O(1).
--]]
verb('info', 'ro', function(args)
    args_exactly(args, 0, 'none')
    return View.info()
end)
