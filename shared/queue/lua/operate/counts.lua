--[[
counts: returns how many jobs of a run are in each state, including all that ever ended.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] run    name

Returns seven integers: queued delayed running done dead skipped cancelled.
Cost    O(1).
--]]
verb('counts', 'ro', function(args)
    args_exactly(args, 1, 'run')
    if not name_ok(args[1], 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    return View.counts(args[1])
end)
