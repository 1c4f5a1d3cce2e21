-- Finds, loads and checks libsluice.so. Everything that LuaJIT has to be told
-- of the library stands here, once: its functions, its structs, its version.

local ffi = require "ffi"


local ffi_load = ffi.load
local ffi_offsetof = ffi.offsetof
local ffi_sizeof = ffi.sizeof
local ffi_string = ffi.string
local io_open = io.open
local concat = table.concat
local error = error
local pcall = pcall
local tostring = tostring


local VERSION = "0.1.0"
-- Raised with every change of a function or struct below; the library's own
-- number is src/ffi/abi.rs.
local ABI = 3
local NAME = "libsluice.so"


ffi.cdef[[
typedef struct {
    const char  *data;
    size_t       len;
} sluice_bytes_t;

typedef struct {
    sluice_bytes_t  user;
    sluice_bytes_t  rules;
    sluice_bytes_t  pool;
    double          cost;
    int32_t         raise;
    uint32_t        given;
} sluice_options_t;

typedef struct {
    int32_t   action;
    int32_t   status;
    uint32_t  ticket;
    uint32_t  generation;
    double    seconds;
    double    remaining;
    uint32_t  body_len;
    uint32_t  message_len;
    uint32_t  file;
    uint32_t  unused;
    char      body[512];
    char      message[768];
} sluice_answer_t;

int32_t sluice_abi(void);
int32_t sluice_layout(uint32_t index);
int32_t sluice_version(char *buf, size_t size);

int32_t sluice_access(void *r, const sluice_options_t *options,
    sluice_answer_t *out);
int32_t sluice_resume(void *r, uint32_t ticket, uint32_t generation,
    int32_t timed_out, sluice_answer_t *out);
int32_t sluice_log(void *r);
int32_t sluice_header(void *r);
int32_t sluice_check(const char *rule, size_t rule_len, const char *key,
    size_t key_len, double cost, sluice_answer_t *out);
int32_t sluice_check_resume(uint32_t ticket, uint32_t generation,
    int32_t timed_out, sluice_answer_t *out);
int32_t sluice_ban(const char *subject, size_t subject_len, double seconds,
    sluice_answer_t *out);
int32_t sluice_unban(const char *subject, size_t subject_len,
    sluice_answer_t *out);
int32_t sluice_ban_resume(uint32_t ticket, uint32_t generation,
    int32_t timed_out, sluice_answer_t *out);

int32_t sluice_finished(uint32_t *tickets, uint32_t capacity);
int32_t sluice_message(char *buf, size_t size, int32_t *level);
int32_t sluice_bridge_path(char *buf, size_t size);
int32_t sluice_quit(void);

int32_t sluice_direct(int32_t on);
int32_t sluice_filter(void);
int32_t sluice_wanted(uint32_t index, char *buf, size_t size);
uint32_t sluice_wanted_version(void);
int32_t sluice_access_given(void *r, const sluice_bytes_t *values,
    uint32_t count, int32_t subrequest, const sluice_options_t *options,
    sluice_answer_t *out);
int32_t sluice_resume_given(void *r, uint32_t ticket, uint32_t generation,
    int32_t timed_out, sluice_answer_t *out);
int32_t sluice_log_given(void *r, const sluice_bytes_t *values);
int32_t sluice_header_given(void *r, const sluice_bytes_t *values);
int32_t sluice_effect(uint32_t index, char *buf, size_t size);
]]


local _M = {
    _VERSION = VERSION,
}


-- Where the library may lie, in the order in which it is looked for.
local function candidates()
    local list = {}

    for template in package.cpath:gmatch("[^;]+") do
        if template:find("?", 1, true) then
            list[#list + 1] = template:gsub("%?", (NAME:gsub("%.so$", "")))
        end
    end

    -- Beside resty/, beside sluice.lua, beside this file, or in PREFIX/lib
    -- when this file is PREFIX/share/lua/5.1/resty/sluice/library.lua.
    local source = debug.getinfo(1, "S").source
    local dir = source:match("^@(.*)/[^/]*$")
    if dir then
        list[#list + 1] = dir .. "/../../" .. NAME
        list[#list + 1] = dir .. "/../" .. NAME
        list[#list + 1] = dir .. "/" .. NAME
        list[#list + 1] = dir .. "/../../../../../lib/" .. NAME
    end

    return list
end


-- The numbers that sluice_layout(0), sluice_layout(1), … must answer.
local function layout()
    local options, answer = "sluice_options_t", "sluice_answer_t"
    return {
        ffi_sizeof("sluice_bytes_t"),
        ffi_offsetof("sluice_bytes_t", "len"),
        ffi_sizeof(options),
        ffi_offsetof(options, "rules"),
        ffi_offsetof(options, "pool"),
        ffi_offsetof(options, "cost"),
        ffi_offsetof(options, "raise"),
        ffi_offsetof(options, "given"),
        ffi_sizeof(answer),
        ffi_offsetof(answer, "status"),
        ffi_offsetof(answer, "ticket"),
        ffi_offsetof(answer, "generation"),
        ffi_offsetof(answer, "seconds"),
        ffi_offsetof(answer, "remaining"),
        ffi_offsetof(answer, "body_len"),
        ffi_offsetof(answer, "message_len"),
        ffi_offsetof(answer, "file"),
        ffi_offsetof(answer, "body"),
        ffi_offsetof(answer, "message"),
    }
end


local function version_of(lib)
    local buf = ffi.new("char[64]")
    local ok, n = pcall(function ()
        return lib.sluice_version(buf, 64)
    end)
    if not ok or n < 0 then
        return "unknown"
    end
    return ffi_string(buf, n)
end


-- A library of another version may lack a symbol, so each look is guarded.
local function verify(lib, path)
    local ok, abi = pcall(function ()
        return lib.sluice_abi()
    end)
    if not ok or abi ~= ABI then
        return nil, "sluice: " .. path .. " is version " .. version_of(lib)
                    .. " (ABI " .. tostring(ok and abi or "unknown")
                    .. "), the Lua files are version " .. VERSION .. " (ABI "
                    .. ABI .. "): install both from one release and restart"
    end

    local expected = layout()
    for i = 1, #expected do
        local got = lib.sluice_layout(i - 1)
        if got ~= expected[i] then
            return nil, "sluice: struct layout " .. (i - 1) .. " is " .. got
                        .. " in " .. path .. " (version " .. version_of(lib)
                        .. ") and " .. expected[i] .. " in the Lua files "
                        .. "(version " .. VERSION .. "): install both from "
                        .. "one release and restart"
        end
    end

    if lib.sluice_layout(#expected) ~= -1 then
        return nil, "sluice: " .. path .. " (version " .. version_of(lib)
                    .. ") has struct fields that the Lua files (version "
                    .. VERSION .. ") do not know: install both from one "
                    .. "release and restart"
    end

    return true
end


local function load()
    local tried = {}

    for _, path in ipairs(candidates()) do
        local file = io_open(path, "rb")
        if not file then
            tried[#tried + 1] = path .. ": no such file"

        else
            file:close()

            local ok, lib = pcall(ffi_load, path)
            if not ok then
                tried[#tried + 1] = path .. ": " .. tostring(lib)

            else
                local fine, err = verify(lib, path)
                if not fine then
                    error(err, 0)
                end

                local open, reason = package.loadlib(path, "luaopen_sluice")
                if not open then
                    error("sluice: " .. path .. " was built without its Lua "
                          .. "module (" .. tostring(reason) .. "): build it "
                          .. "with `make build`", 0)
                end

                return lib, open("sluice"), path
            end
        end
    end

    error("sluice: cannot load " .. NAME .. "; tried:\n  "
          .. concat(tried, "\n  ") .. "\nput it beside the Lua files, into "
          .. "PREFIX/lib, or name its directory in lua_package_cpath", 0)
end


-- C: the functions above. module: the control plane, made with mlua.
_M.C, _M.module, _M.path = load()


return _M
