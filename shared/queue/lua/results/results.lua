--[[
results: returns the results of a run in the order of publication: task results and ends.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] run    name
ARGV[2] cursor 0 first, then what was returned
ARGV[3] count  1 to 1000 index entries

Returns {next cursor, record, finished_ms, record, finished_ms...}; finished_ms is the server's time of publication.
        Records that retention removed are passed over; the cursor moves on.
Cost    O(count).
--]]
verb('results', 'ro', function(args)
    args_exactly(args, 3, 'run cursor count')
    if not name_ok(args[1], 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    local from = integer_arg(args, 2, 0, 9007199254740992, 'cursor')
    local count = integer_arg(args, 3, 1, 1000, 'count')
    local rows, next_cursor = Results.index_rows(args[1], from, count)
    local reply = { next_cursor }
    for _, row in ipairs(rows) do
        local ok, record, ms = pcall(Results.indexed_record, row)
        if ok and record then
            reply[#reply + 1] = record
            reply[#reply + 1] = ms
        end
    end
    return reply
end)
