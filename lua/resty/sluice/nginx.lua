-- What the library may take for granted of the nginx that it runs in.
--
-- The library calls lua-nginx-module's own FFI functions. Their signatures
-- have been the same for years, but nobody promises them: what lua-resty-core
-- has declared is compared with what the library was built for. Where they
-- differ the request is read through ngx.var and answered through ngx.header
-- (this module's given()): slower, with the same answers.

local ffi = require "ffi"
local base = require "resty.core.base"
local library = require "resty.sluice.library"

require "resty.core.misc"
require "resty.core.phase"
require "resty.core.request"
require "resty.core.response"
require "resty.core.var"


local C = library.C
local band = bit.band
local rshift = bit.rshift
local ffi_string = ffi.string
local get_request = base.get_request
local get_phase = ngx.get_phase
local concat = table.concat
local lower = string.lower
local ngx = ngx
local pcall = pcall
local tonumber = tonumber
local type = type


-- LuaJIT's lj_ctype.h: the kind of a type is the upper four bits of its info.
local CT_NUM, CT_PTR, CT_VOID = 0, 2, 4
local CT_ENUM, CT_TYPEDEF, CT_ATTRIB = 5, 7, 8
local CTF_UNSIGNED = 0x00800000
local BUF_SIZE = 8192
-- src/ffi/abi.rs
local WRONG_PHASE = -4
local DECIDING = {
    rewrite = true,
    access = true,
    server_rewrite = true,
}


-- Result and arguments: i4, u8 (bytes), p (pointer), v (void).
local EXPECTED = {
    ngx_http_lua_ffi_var_get = "i4(p,p,u8,p,i4,p,p,p)",
    ngx_http_lua_ffi_var_set = "i4(p,p,u8,p,p,u8,p,p)",
    ngx_http_lua_ffi_set_resp_header = "i4(p,p,u8,i4,p,u8,p,u8,i4,p)",
    ngx_http_lua_ffi_req_get_headers_count = "i4(p,i4,p)",
    ngx_http_lua_ffi_req_get_headers = "i4(p,p,i4,i4)",
    ngx_http_lua_ffi_req_set_header = "i4(p,p,u8,p,u8,p,u8,i4,p)",
    ngx_http_lua_ffi_is_subrequest = "i4(p)",
    ngx_http_lua_ffi_get_phase = "i4(p,p)",
}


local _M = {
    expected = EXPECTED,
}


local function type_text(id)
    for _ = 1, 16 do
        local info = ffi.typeinfo(id)
        local kind = rshift(info.info, 28)
        if kind == CT_PTR then
            return "p"
        end
        if kind == CT_VOID then
            return "v"
        end
        if kind == CT_NUM then
            local unsigned = band(info.info, CTF_UNSIGNED) ~= 0
            return (unsigned and "u" or "i") .. info.size
        end
        if kind ~= CT_ENUM and kind ~= CT_TYPEDEF and kind ~= CT_ATTRIB then
            return "?" .. kind
        end
        id = band(info.info, 0xffff)
    end
    return "?"
end


local function signature(name)
    local id = tonumber(ffi.typeof(ffi.C[name]))
    local info = ffi.typeinfo(id)
    local result = type_text(band(info.info, 0xffff))
    local args = {}
    local sib = info.sib
    while sib do
        local field = ffi.typeinfo(sib)
        args[#args + 1] = type_text(band(field.info, 0xffff))
        sib = field.sib
    end
    return result .. "(" .. concat(args, ",") .. ")"
end


-- Returns true, or nil and the first difference.
function _M.compare(expected)
    if not ffi.typeinfo then
        return nil, "this LuaJIT has no ffi.typeinfo"
    end

    for name, want in pairs(expected) do
        local ok, got = pcall(signature, name)
        if not ok then
            return nil, name .. " is not declared by lua-resty-core"
        end
        if got ~= want then
            return nil, name .. " is declared as " .. got .. ", not " .. want
        end
    end

    return true
end


local buf = ffi.new("char[?]", BUF_SIZE)
local values
local names = {}
local kinds = {}
-- Holds the strings whose bytes `values` points to.
local anchors = {} -- luacheck: ignore 241
local version = -1


-- The values that the rules in force need, asked for by name once a change.
local function refresh()
    local v = C.sluice_wanted_version()
    if v == version then
        return
    end

    names, kinds = {}, {}
    while true do
        local n = C.sluice_wanted(#names, buf, BUF_SIZE)
        if n < 0 then
            break
        end
        local text = ffi_string(buf, n)
        kinds[#kinds + 1] = text:sub(1, 1)
        names[#names + 1] = text:sub(3)
    end

    values = ffi.new("sluice_bytes_t[?]", #names + 1)
    version = v
end


-- All lines of a header, joined as RFC 9110 section 5.3 says.
local function joined(headers, name)
    local value = headers[name]
    if type(value) == "table" then
        return concat(value, name == "cookie" and "; " or ", ")
    end
    if value == true then
        return ""
    end
    return value
end


local function apply()
    local i = 0
    while true do
        local n = C.sluice_effect(i, buf, BUF_SIZE)
        if n < 0 then
            return
        end

        local kind, name, value = ffi_string(buf, n)
                                  :match("^(%a)([^%z]*)%z(.*)$")
        if kind == "v" then
            -- Without the include there is no such variable; status says so.
            pcall(function ()
                ngx.var[name] = value
            end)

        elseif kind == "h" then
            ngx.header[name] = value

        elseif kind == "q" then
            ngx.req.set_header(name, value)

        else
            ngx.req.clear_header(name)
        end
        i = i + 1
    end
end


-- sluice_access() for an nginx whose functions the library does not know.
function _M.access(options, out)
    local r = get_request()

    if not DECIDING[get_phase()] then
        return WRONG_PHASE
    end

    refresh()

    local headers
    for i = 1, #names do
        local name = names[i]
        local value
        if kinds[i] == "h" and lower(name) == "user-agent" then
            -- The one line of several that nginx itself goes by.
            value = ngx.var.http_user_agent
        elseif kinds[i] == "h" then
            headers = headers or ngx.req.get_headers(0)
            value = joined(headers, lower(name))
        else
            value = ngx.var[name]
        end
        anchors[i] = value
        if value then
            values[i - 1].data = value
            values[i - 1].len = #value
        else
            values[i - 1].data = nil
            values[i - 1].len = 0
        end
    end

    local rc = C.sluice_access_given(r, values, #names,
                                     ngx.is_subrequest and 1 or 0, options,
                                     out)
    apply()
    return rc
end


function _M.resume(r, ticket, generation, timed_out, out)
    local rc = C.sluice_resume_given(r, ticket, generation, timed_out, out)
    apply()
    return rc
end


-- What src/ffi/given.rs calls ANSWERED.
local ANSWERED = {
    "status",
    "upstream_status",
    "upstream_response_time",
    "upstream_header_time",
}
local answered = ffi.new("sluice_bytes_t[?]", #ANSWERED)
-- Holds the strings whose bytes `answered` points to.
local answered_anchors = {} -- luacheck: ignore 241


local function read_answered()
    for i = 1, #ANSWERED do
        local value = ngx.var[ANSWERED[i]]
        answered_anchors[i] = value
        answered[i - 1].data = value
        answered[i - 1].len = value and #value or 0
    end
    return answered
end


function _M.log(r)
    C.sluice_log_given(r, read_answered())
end


function _M.header(r)
    C.sluice_header_given(r, read_answered())
end


return _M
