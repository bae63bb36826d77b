--[[
pause: stops claims of the queue, a suite or a run until it is resumed. Running jobs continue.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] kind   queue, suite or run
ARGV[2] name   of the suite or run; anything for queue
ARGV[3] on     1 or 0

Returns "ok".
Cost    O(C); resuming a run brings back at most 100 flows, later calls the rest.
--]]
verb('pause', 'drain', function(args)
    args_exactly(args, 3, 'kind name on')
    local kind, name, on = args[1], args[2], args[3]
    if on ~= '0' and on ~= '1' then
        refuse('on must be 0 or 1')
    end
    if kind == 'queue' then
        Queue.set_meta('paused', tonumber(on))
        if on == '0' then
            for _, class in ipairs(call('HKEYS', PREFIX .. 'classes')) do
                Flow.wake(class)
            end
        end
    elseif kind == 'suite' and name_ok(name, 32) then
        Flow.limit_suite(name, 'paused', on)
    elseif kind == 'run' and name_ok(name, 64) then
        Flow.run(name).paused = on == '1'
        call('HSET', PREFIX .. 'run:' .. name, 'paused', on)
        if on == '0' then
            Flow.unpark(name)
        end
    else
        refuse('kind must be queue, suite or run, and name a name')
    end
    return 'ok'
end)
