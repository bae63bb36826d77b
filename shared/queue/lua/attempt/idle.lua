--[[
idle: returns the suites for which a worker is free. Each free worker is reported to one caller only.

KEYS[1] prefix    "evalq:{queue}:"
ARGV[1] run       who asks: nothing while it is paused or at its cap
ARGV[2] given     1: the needs are the asker's own; 0: the suite's, as its workers register it
ARGV[3] needs     canonical text
ARGV[4...] suite  1 to 64

Returns the suites asked for, none or more of those named.
Holds   a mark `idle CLASS` stands for a claim of the last IDLE_MS that named the class, had room left and found nothing;
        claims leave marks only while somebody has asked within ASKED_MS.
Cost    O(n).
--]]
local IDLE_MS = 15000 -- Workers claim at least every 5 s while they are free.
local ASKED_MS = 60000

-- After a claim: notes its classes as idle if it found fewer jobs than it wanted, and as busy if it found enough.
function Claim.note_idle(claim, rows)
    if rows == claim.count then
        if #claim.classes > 0 then
            call('HDEL', PREFIX .. 'idle', unpack(claim.classes))
        end
    elseif not claim.cut and #claim.open > 0 then
        local fields = {}
        for _, class in ipairs(claim.open) do
            fields[#fields + 1] = class
            fields[#fields + 1] = NOW_TEXT
        end
        call('HSET', PREFIX .. 'idle', unpack(fields))
        call('PEXPIRE', PREFIX .. 'idle', ASKED_MS)
    end
end

-- The class of the suite with these needs. It is made if needs are given, so that workers can see whether they fit.
local function class_of(suite, needs)
    if needs == '*' then
        return (Flow.class(suite, needs))
    end
    return (Flow.make_class(suite, needs))
end

-- Claims leave marks only while somebody asks. If this is the first question, wakes the workers that are blocked.
local function asked(classes)
    if Queue.meta().idle_until < NOW then
        for _, class in ipairs(classes) do
            Flow.wake(class)
        end
    end
    if Queue.meta().idle_until < NOW + ASKED_MS / 2 then
        Queue.set_meta('idle_until', NOW + ASKED_MS)
    end
end

verb('idle', 'drain', function(args)
    if #args < 4 or #args > 3 + CLASSES_MAX then
        refuse('expected run given needs and 1 to ' .. CLASSES_MAX .. ' suites')
    end
    if not name_ok(args[1], 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    if (args[2] ~= '0' and args[2] ~= '1') or #args[3] > 255 or args[3]:find('[%s%c*]') then
        refuse('given must be 0 or 1, needs at most 255 bytes without blanks')
    end
    for i = 4, #args do
        if not name_ok(args[i], 32) then
            refuse('suite must be 1 to 32 of [A-Za-z0-9._-]')
        end
    end
    local free, classes = {}, {}
    local may = Queue.meta().paused ~= 1 and not Flow.is_blocked(Flow.run(args[1]))
    for i = 4, #args do
        local class = class_of(args[i], args[2] == '1' and args[3] or '*')
        if class then
            classes[#classes + 1] = class
            local mark = may and tonumber(call('HGET', PREFIX .. 'idle', class) or nil)
            local ready = PREFIX .. 'ready:' .. class -- Not yet claimed: whoever left the mark will take it.
            if mark and NOW - mark <= IDLE_MS and not call('HGET', PREFIX .. 'block', class) and
                call('EXISTS', ready .. ':0', ready .. ':1', ready .. ':2', ready .. ':3') == 0 then
                call('HDEL', PREFIX .. 'idle', class)
                free[#free + 1] = args[i]
            end
        end
    end
    asked(classes)
    return free
end)
