-- Removes keys, if a fence is still what it was when it was taken.
--
-- KEYS[1]: the fence; the others: the keys. ARGV[1]: what the fence has to be.
--
-- It answers `{0, REMOVED}`; `{-1, FENCE}` where the fence is another one and nothing was done.
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] then return {-1, held or ''} end
return {0, redis.call('UNLINK', unpack(KEYS, 2))}
