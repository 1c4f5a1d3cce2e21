-- Prints a run of wrk as one line that a program can read.
done = function(summary, latency)
    local errors = summary.errors
    io.write(string.format("RESULT %d %d %d %d %d\n", summary.requests,
        summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status
        + errors.timeout))
end
