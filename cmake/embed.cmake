# embed_files(OUT TABLE [WITH_EXTENSION] FILES...): a C file whose table TABLE (struct embedded_file of
# base/base.h) holds the files' bytes, each by its name without folder and, unless WITH_EXTENSION is there, without
# extension; the last row has no name. Made anew when one of them changes.
function(embed_files out table)
  cmake_parse_arguments(PARSE_ARGV 2 embed "WITH_EXTENSION" "" "")
  set(part NAME_WLE)
  if(embed_WITH_EXTENSION)
    set(part NAME)
  endif()
  set(arrays "")
  set(rows "")
  set(n 0)
  foreach(file IN LISTS embed_UNPARSED_ARGUMENTS)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} ${part})
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND arrays "static const uint8_t file_${n}[] = {${bytes}};\n")
    string(APPEND rows "    {\"${name}\", file_${n}, sizeof file_${n}},\n")
    math(EXPR n "${n} + 1")
  endforeach()
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
"#include \"base/base.h\"

@arrays@
extern const struct embedded_file @table@[];
const struct embedded_file @table@[] = {
@rows@    {NULL, NULL, 0}};
")
endfunction()
