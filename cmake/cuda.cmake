# Device code: nvcc compiles each .cu file for all architectures into one image, which becomes bytes
# of the library that loads it. No toolkit is linked, and without a compiler everything else builds.
#
# nvcc is $CUDACXX, or that of the PATH, of /usr/local/cuda, or what scripts/setup has fetched; CUDA 12
# or later. -DOATO_NVCC=OFF does without.
include_guard()
enable_language(ASM)

set(cuda_cache $ENV{OATO_CACHE})
if(NOT cuda_cache)
  set(cuda_cache $ENV{HOME}/.cache/oato)
endif()
find_program(OATO_NVCC NAMES $ENV{CUDACXX} nvcc PATHS /usr/local/cuda/bin ${cuda_cache}/cuda/bin
  DOC "The CUDA compiler; OFF: none")
set(OATO_CUDA_ARCHITECTURES 75 80 86 89 90 100 120 CACHE STRING
  "GPUs whose machine code is built, as nvcc numbers them, those that nvcc does not know left out; native: this machine's")

# In the place of `native`: what nvcc compiles for the GPUs of this machine.
if(OATO_NVCC AND OATO_CUDA_ARCHITECTURES STREQUAL native)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE ignored)
  execute_process(COMMAND ${OATO_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
  set(OATO_CUDA_ARCHITECTURES "")
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" gpus "${gpus}")
  foreach(gpu IN LISTS gpus)
    string(REPLACE "." "" gpu ${gpu})
    if(known MATCHES "compute_${gpu}(\n|$)" AND NOT gpu IN_LIST OATO_CUDA_ARCHITECTURES)
      list(APPEND OATO_CUDA_ARCHITECTURES ${gpu})
    endif()
  endforeach()
endif()

# What nvcc is told, in OATO_NVCC_FLAGS, and the major version of CUDA, which is that of the oldest
# drivers that load what it makes (12: R525, 13: R580), in OATO_CUDA_MAJOR. PTX needs a driver of the
# whole version, OATO_CUDA_VERSION; GPUs with machine code of their own, OATO_CUDA_BUILT, do not. Machine code runs on later GPUs of its generation (80 on 87,
# 100 on 103); PTX is there for other ones: for those between 90 and the newest that we compile for, and
# for those after it.
function(cuda_configure)
  execute_process(COMMAND ${OATO_NVCC} --version OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT text MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "${OATO_NVCC} is no CUDA compiler that runs here; -DOATO_NVCC=OFF does without:\n${text}")
  endif()
  set(major ${CMAKE_MATCH_1})
  set(version ${major}.${CMAKE_MATCH_2})
  if(major LESS 12)
    message(FATAL_ERROR "${OATO_NVCC} is of CUDA ${version}; 12.0 or later is needed, or -DOATO_NVCC=OFF")
  endif()
  # Sums and products are rounded as they are written, as everywhere here: kernels say fmaf.
  set(flags -std=c++17 -fmad=false -Werror all-warnings -Wno-deprecated-gpu-targets --threads 2)
  # What every driver of the version unpacks.
  if(major LESS 13)
    list(APPEND flags -Xfatbin -compress-all)
  else()
    list(APPEND flags --compress-mode=size)
  endif()
  execute_process(COMMAND ${OATO_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
  set(built "")
  foreach(arch IN LISTS OATO_CUDA_ARCHITECTURES)
    if(known MATCHES "compute_${arch}(\n|$)")
      set(from ${arch})
      if(arch MATCHES "^8[0-9]$")
        set(from 80) # one front end's pass for all of them
      endif()
      list(APPEND flags -gencode arch=compute_${from},code=sm_${arch})
      list(APPEND built ${arch})
    endif()
  endforeach()
  if(NOT built)
    message(FATAL_ERROR "${OATO_NVCC} compiles for none of OATO_CUDA_ARCHITECTURES ${OATO_CUDA_ARCHITECTURES}")
  endif()
  list(GET built -1 newest)
  list(APPEND flags -gencode arch=compute_${newest},code=compute_${newest})
  if(90 IN_LIST built AND NOT newest EQUAL 90)
    list(APPEND flags -gencode arch=compute_90,code=compute_90)
  endif()
  message(STATUS "CUDA ${version}: ${OATO_NVCC}, for ${built}; needs a driver of CUDA ${major}.0 or newer")
  set(OATO_NVCC_FLAGS ${flags} PARENT_SCOPE)
  set(OATO_CUDA_MAJOR ${major} PARENT_SCOPE)
  set(OATO_CUDA_VERSION ${version} PARENT_SCOPE)
  string(REPLACE ";" ", sm_" built "sm_${built}")
  set(OATO_CUDA_BUILT ${built} PARENT_SCOPE)
endfunction()

if(OATO_NVCC AND OATO_CUDA_ARCHITECTURES)
  cuda_configure()
else()
  set(OATO_CUDA_MAJOR 12) # of the functions that the device calls
  set(OATO_CUDA_VERSION 12.0)
  set(OATO_CUDA_BUILT none)
  message(STATUS "No CUDA compiler or no GPU to compile for: built without kernels for GPUs")
  set(OATO_NVCC OFF)
endif()

# oato_fatbin(TARGET source.cu SYMBOL): the image of the source becomes part of the target as
# `const unsigned char SYMBOL[]`, 64-byte aligned. Without a compiler it is empty: one zero byte.
function(oato_fatbin target source symbol)
  get_filename_component(source ${source} ABSOLUTE)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.fatbin)
  set(assembly ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.S)
  set(content ".byte 0")
  if(OATO_NVCC)
    set(content ".incbin \"${image}\"")
    add_custom_command(OUTPUT ${image} DEPFILE ${image}.d DEPENDS ${source} ${OATO_NVCC}
      COMMAND ${OATO_NVCC} ${OATO_NVCC_FLAGS} -I ${PROJECT_SOURCE_DIR} -MD -MT ${image} -MF ${image}.d
        -fatbin -o ${image} ${source}
      COMMENT "Compiling device code ${symbol}" VERBATIM)
    set_source_files_properties(${assembly} PROPERTIES OBJECT_DEPENDS ${image})
  endif()
  file(CONFIGURE OUTPUT ${assembly} @ONLY CONTENT
"    .section .rodata
    .balign 64
    .globl @symbol@
    .type @symbol@, %object
@symbol@:
    @content@
    .size @symbol@, . - @symbol@
    .section .note.GNU-stack, \"\", %progbits
")
  target_sources(${target} PRIVATE ${assembly})
endfunction()
