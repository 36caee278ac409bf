-- Writes keys, if a fence is still what it was when it was taken.
--
-- KEYS[1]: the fence; the others: the keys. ARGV[1]: what the fence has to be; then an absolute time and
-- a payload for each key.
--
-- It answers `{0}`; `{-1, FENCE}` where the fence is another one and nothing was done; `{N, ERROR}` where key
-- N was refused and those after it were not tried.
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] then return {-1, held or ''} end
for i = 2, #KEYS do
  local done = redis.pcall('RESTORE', KEYS[i], ARGV[2 * i - 2], ARGV[2 * i - 1], 'REPLACE', 'ABSTTL')
  if done.err then return {i - 1, done.err} end
end
return {0}
