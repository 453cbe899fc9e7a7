# SPDX-License-Identifier: Apache-2.0
# bash completion for sparsemla(1)

_sparsemla() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    local list='' words=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'info warm explain verify bench replay cache --help --version' -- "$cur")
        return
    fi
    case $prev in
    --model) words='glm-5 glm-5.3-flash deepseek-v3.2 deepseek-v4-flash deepseek-v4-pro llama.cpp' ;;
    --arch) list=1 words='sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120 sm_121' ;;
    --heads) list=1 words='8 16 32 64 128' ;;
    --tokens) list=1 words='1 16 64 128 256' ;;
    --format) list=1 words='fp8_ds_mla fp8_ds_mla_nope bf16 f16 e4m3 v4 q8_0' ;;
    --q-dtype) words='bf16 f16 f32' ;;
    --backend) words='cuda host' ;;
    --profile) words='auto sm80 sm89 sm90 sm120' ;;
    --cache)
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        compopt -o filenames 2>/dev/null
        return
        ;;
    --nvrtc)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
        return
        ;;
    --topk) return ;;
    *)
        case $command in
        info) words='--cache --nvrtc --json --verbose --help' ;;
        warm) words='--model --arch --heads --format --topk --q-dtype --cache --nvrtc --share --verbose --help' ;;
        explain)
            words='--model --heads --tokens --format --topk --q-dtype --profile --cache --nvrtc --json --verbose --help'
            ;;
        verify) words='--backend --profile --cache --nvrtc --json --verbose --help' ;;
        bench)
            words='--model --heads --tokens --format --topk --q-dtype --backend --profile --cache --nvrtc --json --verbose
                --help'
            ;;
        replay)
            words='--backend --profile --cache --nvrtc --json --verbose --help'
            if [[ $cur != -* ]]; then
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                compopt -o filenames 2>/dev/null
                return
            fi
            ;;
        cache) words='list check clear --cache --json --verbose --help' ;;
        esac
        ;;
    esac
    if [[ $list && $cur == *,* ]]; then
        mapfile -t COMPREPLY < <(compgen -P "${cur%,*}," -W "$words" -- "${cur##*,}")
    else
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    fi
}
complete -F _sparsemla sparsemla
