--[[
gc: removes a slice of old records: ended jobs past their age or number, and flows without a submit for 90 days.

KEYS[1] prefix "evalq:{queue}:"

Returns the number of records removed, or of rows trimmed from indexes if no record was; 0: nothing was left to do.
Cost    at most 100 records.
--]]
verb('gc', 'drain', function(args)
    args_exactly(args, 0, 'none')
    return text_of(Sweep.retention(SLICE))
end)
