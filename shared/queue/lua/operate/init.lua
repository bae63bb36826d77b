--[[
init: makes the queue's epoch if there is none.

KEYS[1] prefix "evalq:{queue}:"

Returns info's reply.
Cost    O(1).
--]]
verb('init', 'drain', function(args)
    args_exactly(args, 0, 'none')
    return View.info()
end)
