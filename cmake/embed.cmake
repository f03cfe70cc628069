# embed_files(OUT TABLE FILES...): a C file whose table TABLE (struct embedded_file of base/base.h) holds the
# files' bytes, each by its name without folder and extension; the last row has no name. Made anew when one of
# them changes.
function(embed_files out table)
  set(arrays "")
  set(rows "")
  set(n 0)
  foreach(file IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME_WLE)
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
